"""Looking into queues and changing them on a whole node, over kills."""

from __future__ import annotations

import time

import pytest

from leveret.mgmt_ui.control_client import request
from tests.harness.broker import BrokerProcess
from tests.harness.pika_client import connected, declare, publish
from tests.support.waiting import wait_until
from tests.system.test_encryption import SECRET, broker_at, key_file, leveret

pytestmark = pytest.mark.usefixtures("processes")

__all__ = ["key_file"]


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
        wait_until(lambda: browse(broker, "new"), "the message that is tried again")
        assert channel.basic_get("q")[0] is None  # it is paused still
        ask(broker, "queue.resume", vhost="/", name="new")
        assert channel.basic_get("q")[2] == b"failed"
        connection.close()
    finally:
        broker.kill()
