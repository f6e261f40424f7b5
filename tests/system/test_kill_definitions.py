"""Declarations, bindings and deletions that were answered survive a kill."""

from __future__ import annotations

import random
import threading
from typing import TYPE_CHECKING

import pytest
from pamqp import commands

from tests.harness.broker import BrokerProcess
from tests.harness.kills import Events, kill_after
from tests.harness.wire import Client, ClosedError

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.usefixtures("processes")

EXCHANGE = "amq.direct"
NAMES = 30  # few, so that names are deleted and declared again


class Definer:
    """Declares, fills, deletes queues, and knows of each how it must be found after a kill.

    `messages` has a queue for as long as it exists, with what was confirmed in it; `unsure` is the
    one whose last operation was not answered.
    """

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.messages: dict[str, list[bytes]] = {}
        self.unsure = ""
        self.events = Events()  # operations that were done

    def run(self, port: int) -> None:
        try:
            with Client(port) as client:
                client.confirming()
                published = 0
                while True:
                    published += self._one_operation(client, published + 1)
        except OSError:
            pass  # the broker was killed

    def _one_operation(self, client: Client, tag: int) -> int:
        """Returns how many messages were published."""
        name = f"q{self.rng.randrange(NAMES)}"
        self.unsure = name
        if name not in self.messages:
            client.declare(name)
            client.call(1, commands.Queue.Bind(queue=name, exchange=EXCHANGE, routing_key=name))
            self.messages[name] = []
        elif self.rng.random() < 0.4:
            client.call(1, commands.Queue.Delete(queue=name))
            del self.messages[name]
        else:
            body = b"%d" % self.events.count
            client.publish(name, [body], exchange=EXCHANGE)
            client.await_confirms(tag)
            self.messages[name].append(body)
        published = int(bool(self.messages.get(name)))
        self.unsure = ""
        self.events()
        return published

    def check(self, port: int) -> None:
        """Hold what the broker has against what was answered, then take over what it has."""
        for name in sorted({f"q{number}" for number in range(NAMES)} - {self.unsure}):
            assert found_in(port, name) == self.messages.get(name), name
        if self.unsure:
            with Client(port) as client:
                client.call(1, commands.Queue.Delete(queue=self.unsure))
            self.messages.pop(self.unsure, None)


def found_in(port: int, name: str) -> list[bytes] | None:
    """The bodies in a queue, which keeps them; None where there is no such queue."""
    with Client(port) as client:
        try:
            count = client.count(name)
        except ClosedError as closed:
            if closed.code != 404:
                raise
            return None
        client.consume(name)
        return [one.body for one in client.deliveries(count)]


@pytest.mark.kills
def test_answered_definitions_survive_kills(tmp_path: Path, seed: int):
    rng = random.Random(seed)
    definer = Definer(random.Random(f"{seed} definer"))
    broker = BrokerProcess(tmp_path / "data")
    try:
        for _ in range(2):
            broker.start()
            definer.check(broker.port)
            client = threading.Thread(target=definer.run, args=(broker.port,))
            client.start()
            kill_after(broker, definer.events, rng.randint(1, 150))
            client.join()
        broker.start()
        definer.check(broker.port)
        print(f"{definer.events.count} operations")
        broker.check_untroubled()
    finally:
        broker.kill()
