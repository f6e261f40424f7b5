"""A queue renamed under load has its old name or its new one after a kill, and all that it had."""

from __future__ import annotations

import random
import threading
from typing import TYPE_CHECKING

import pytest
from pamqp import commands

from leveret.errors import StorageError
from leveret.mgmt_ui.control_client import request
from tests.harness.broker import BrokerProcess
from tests.harness.kills import Events, kill_after
from tests.harness.wire import Client, ClosedError
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.usefixtures("processes")

NAMES = ["q", "a", "b", "c", "d"]
EXCHANGE = "amq.topic"


class Renamer:
    """Gives the queue one name after the other; `at` is the last one that was answered."""

    def __init__(self, path: Path, rng: random.Random, events: Events) -> None:
        self.path = path
        self.events = events
        self.rng = rng
        self.at = "q"
        self.wanted = "q"
        self.known = {"q"}  # names that it had
        self.renames = 0

    def run(self) -> None:
        while True:
            self.wanted = self.rng.choice([name for name in NAMES if name != self.at])
            asked = {"vhost": "/", "name": self.at, "new_name": self.wanted}
            try:
                answer = request(self.path, "queue.rename", asked)
            except (StorageError, ValueError):
                return  # the broker was killed
            assert answer["ok"], answer
            self.at = self.wanted
            self.known.add(self.at)
            self.renames += 1
            self.events()

    def check(self, port: int) -> None:
        """Find the queue under its name, and by every name that it had."""
        page = {"reverse": False, "limit": 10}
        listed = request(self.path, "queue.list", {"vhost": "/", **page})
        assert listed["ok"], listed
        (name,) = [row["name"] for row in listed["result"]["rows"]]
        assert name in {self.at, self.wanted}
        self.at = self.wanted = name
        self.known.add(name)
        with Client(port) as client:
            assert len({client.count(known) for known in self.known}) == 1


class Publisher:
    """Publishes to the name that it has always known, by itself and over a binding."""

    def __init__(self, events: Events) -> None:
        self.events = events
        self.sent = 0
        self.confirmed: list[bytes] = []

    def run(self, port: int) -> None:
        try:
            with Client(port) as client:
                client.confirming()
                for tag in range(1, 1 << 30):
                    body = b"%d" % self.sent
                    self.sent += 1
                    exchange, key = ("", "q") if tag % 2 else (EXCHANGE, "key")
                    client.publish(key, [body], exchange=exchange)
                    client.await_confirms(tag)
                    self.confirmed.append(body)
                    self.events()
        except (OSError, ClosedError):
            pass  # the broker was killed


@pytest.mark.covers("C-213")
@pytest.mark.kills
def test_a_kill_leaves_one_name_and_every_message(tmp_path: Path, seed: int):
    rng = random.Random(seed)
    events = Events()  # answers and confirms
    broker = BrokerProcess(tmp_path / "data")
    renamer = Renamer(tmp_path / "data" / "control.sock", rng, events)
    publisher = Publisher(events)
    try:
        broker.start()
        with Client(broker.port) as client:
            client.declare("q")
            client.call(1, commands.Queue.Bind(queue="q", exchange=EXCHANGE, routing_key="key"))
        for _ in range(2):
            threads = [
                threading.Thread(target=renamer.run),
                threading.Thread(target=publisher.run, args=(broker.port,)),
            ]
            for thread in threads:
                thread.start()
            renames = renamer.renames
            wait_until(lambda: renamer.renames > renames)  # noqa: B023
            kill_after(broker, events, rng.randint(1, 300))
            for thread in threads:
                thread.join()
            broker.start()
            renamer.check(broker.port)
        with Client(broker.port) as client:
            count = client.count("q")
            client.consume("q")
            found = [one.body for one in client.deliveries(count)]
        assert set(publisher.confirmed) <= set(found)
        assert len(found) == len(set(found))
        print(f"{renamer.renames} renames, {len(found)} messages")
        broker.check_untroubled()
    finally:
        broker.kill()
