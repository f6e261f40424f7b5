"""A dead-letter topic that takes nothing loses nothing: the letters stay, and are tried again."""

from __future__ import annotations

import pytest

from leveret.mgmt_ui.control_client import request
from tests.harness.broker import BrokerProcess
from tests.harness.pika_client import await_count, connected, declare, drained, publish

pytestmark = pytest.mark.usefixtures("processes")


def ask(broker, operation, **parameters):
    answer = request(broker.data / "control.sock", operation, parameters)
    assert answer["ok"], answer
    return answer["result"]


@pytest.mark.covers("C-206")
@pytest.mark.parametrize("queue_type", ["classic", "quorum"])
@pytest.mark.parametrize("is_paused", [False, True])
def test_letters_stay_with_their_queue_until_there_is_room(tmp_path, queue_type, is_paused):
    with BrokerProcess(tmp_path / "data") as broker:
        connection, channel = connected(broker)
        declare(channel, "re", queue_type=queue_type, retry_max_attempts=0)
        limits = {} if is_paused else {"max_length": 1, "overflow": "reject-publish"}
        declare(channel, "re.dlq", queue_type=queue_type, **limits)
        if is_paused:
            ask(broker, "queue.pause", vhost="/", name="re.dlq", publishing=True)
        else:
            publish(channel, "re.dlq", b"full")
        for body in (b"1", b"2"):
            publish(channel, "re", body)
            channel.basic_reject(channel.basic_get("re")[0].delivery_tag, requeue=False)
        connection.close()
        broker.kill()  # they are in no consumer's hands now, and rejected once more
        broker.start()
        connection, channel = connected(broker)
        await_count(channel, "re", 2)
        for _ in range(2):
            channel.basic_reject(channel.basic_get("re")[0].delivery_tag, requeue=False)
        assert channel.queue_declare("re", passive=True).method.message_count == 0
        assert "dead letters wait" in broker.log()
        if is_paused:
            ask(broker, "queue.resume", vhost="/", name="re.dlq")
            await_count(channel, "re.dlq", 2)
            assert drained(channel, "re.dlq") == ["1", "2"]
        else:
            assert drained(channel, "re.dlq") == ["full"]
            await_count(channel, "re.dlq", 1)
            assert drained(channel, "re.dlq") == ["1"]
            await_count(channel, "re.dlq", 1)
            assert drained(channel, "re.dlq") == ["2"]
        connection.close()
