"""Looking into queues and changing them on a whole node, over kills."""

from __future__ import annotations

import random
import threading
import time
from collections import Counter

import pytest

from leveret.errors import StorageError
from leveret.mgmt_ui.control_client import request
from tests.harness.broker import BrokerProcess
from tests.support.waiting import LIMIT_SECONDS
from tests.system.test_encryption import SECRET, broker_at, key_file, leveret
from tests.system.test_kill import make_seed
from tests.system.test_queue_features import connected, declare, publish

pytestmark = pytest.mark.usefixtures("processes")

__all__ = ["key_file"]

MESSAGES = 400


def ask(broker, operation, **parameters):
    answer = request(broker.data / "control.sock", operation, parameters)
    assert answer["ok"], answer
    return answer["result"]


def browse(broker, queue, **select):
    """Every message that is selected, page by page."""
    found, after = [], None
    while True:
        page = ask(
            broker,
            "message.list",
            vhost="/",
            queue=queue,
            select=select,
            backwards=False,
            after=after,
        )
        found += page["messages"]
        after = page["after"]
        if after is None:
            return found


def test_an_encrypted_queue_is_browsed_from_the_disk(tmp_path, key_file):
    broker = broker_at(tmp_path, key_file)
    try:
        broker.start()
        leveret(broker.data, "encryption", "enable", "--vhost", "/")
        connection, channel = connected(broker)
        declare(channel, "q")
        for number in range(3000):  # more than the tail in memory holds
            publish(channel, "q", f"{number} {'.' * 1000} {SECRET if number == 7 else ''}")
        connection.close()
        (found,) = browse(broker, "q", text=SECRET)
        assert found["offset"] == 7
        broker.kill()
        broker.start()
        assert len(browse(broker, "q")) == 3000
        select = {"offsets": [7]}
        told = ask(broker, "message.delete", vhost="/", queue="q", select=select)
        assert told["deleted"] == 1
        broker.kill()  # what was answered is done
        broker.start()
        assert browse(broker, "q", text=SECRET) == []
    finally:
        broker.kill()


@pytest.mark.parametrize("durability", ["os", "fsync"])
def test_kills_leave_each_moved_message_in_one_place(tmp_path, durability):
    rng = random.Random(make_seed())
    broker = BrokerProcess(tmp_path / "data", durability=durability)
    try:
        broker.start()
        connection, channel = connected(broker)
        for name in ("a", "b"):
            declare(channel, name)
        for number in range(MESSAGES):
            publish(channel, "a", f"m{number}")
        connection.close()
        for _ in range(3):
            mover = threading.Thread(target=move_to_and_fro, args=(broker,))
            mover.start()
            time.sleep(rng.uniform(0.1, 0.6))
            broker.kill()
            mover.join()
            broker.start()
            found = Counter(row["payload"] for name in "ab" for row in browse(broker, name))
            assert found == Counter(f"m{number}" for number in range(MESSAGES))
        broker.check_untroubled()
    finally:
        broker.kill()


def move_to_and_fro(broker):
    """Until the broker is killed."""
    path, names = broker.data / "control.sock", ["a", "b"]
    while True:
        asked = {"vhost": "/", "queue": names[0], "select": {}, "to_queue": names[1], "limit": 130}
        try:
            answer = request(path, "message.move", asked)
        except (StorageError, ValueError):
            return
        assert answer["ok"], answer
        if not answer["result"]["moved"]:
            names.reverse()


def test_what_waits_beside_a_queue_finds_it_by_its_new_name(tmp_path):
    broker = BrokerProcess(tmp_path / "data")
    try:
        broker.start()
        connection, channel = connected(broker)
        declare(channel, "q", retry_delays=[3000])
        publish(channel, "q", "failed")
        channel.basic_nack(channel.basic_get("q")[0].delivery_tag, requeue=False)
        connection.close()
        time.sleep(0.3)
        ask(broker, "queue.rename", vhost="/", name="q", new_name="new")
        ask(broker, "queue.pause", vhost="/", name="new", publishing=False)
        broker.kill()
        broker.start()
        connection, channel = connected(broker)
        deadline = time.monotonic() + LIMIT_SECONDS
        while not browse(broker, "new"):
            assert time.monotonic() < deadline
            time.sleep(0.1)
        assert channel.basic_get("q")[0] is None  # it is paused still
        ask(broker, "queue.resume", vhost="/", name="new")
        assert channel.basic_get("q")[2] == b"failed"
        connection.close()
    finally:
        broker.kill()
