"""A queue of each kind in a node that is killed and started again: what it had, it has.

What happens at each step of each of them, and within each write, is shown by tests/recovery. Here
a whole node has files of its own, a client that somebody else wrote, and one kill for all.
"""

from __future__ import annotations

import json
import time
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import pika
import pytest

from tests.harness.broker import BrokerProcess
from tests.harness.pika_client import await_count, connected, declare, drained, publish
from tests.harness.traffic import SETTLE_INTERVAL_SECONDS

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

    from pika.adapters.blocking_connection import BlockingChannel

    Kind = Callable[[BlockingChannel], Generator[None, BlockingChannel, None]]

FIRST = {"x-stream-offset": "first"}


def consumed(channel, queue, count, **arguments):
    """Take so many deliveries of a consumer, and acknowledge them."""
    channel.basic_qos(prefetch_count=count)
    found = []
    for method, _, body in channel.consume(queue, arguments=arguments):
        channel.basic_ack(method.delivery_tag)
        found.append(body.decode())
        if len(found) == count:
            break
    channel.cancel()
    return found


def fail(channel, queue, *, requeue=False):
    method, _, _ = channel.basic_get(queue)
    channel.basic_reject(method.delivery_tag, requeue=requeue)


def decide(channel, command, id_):
    reply = channel.queue_declare("", exclusive=True).method.queue
    properties = pika.BasicProperties(headers={"x-prepare-id": id_}, reply_to=reply)
    channel.basic_publish("leveret.prepare", command, b"", properties)
    return json.loads(channel.basic_get(reply, auto_ack=True)[2])["outcome"]


# Each begins before the kill, and is sent the channel after it.


def classic(channel):
    declare(channel, "classic")
    for body in "012":
        publish(channel, "classic", body)
    channel.basic_ack(channel.basic_get("classic")[0].delivery_tag)
    channel = yield
    assert drained(channel, "classic") == ["1", "2"]


def quorum(channel):
    declare(channel, "quorum", queue_type="quorum")
    for body in "01":
        publish(channel, "quorum", body)
    fail(channel, "quorum", requeue=True)
    channel = yield
    method, properties, body = channel.basic_get("quorum", auto_ack=True)
    assert (body, method.redelivered, properties.headers["x-delivery-count"]) == (b"0", True, 1)
    assert drained(channel, "quorum") == ["1"]


def stream(channel):
    declare(channel, "stream", queue_type="stream")
    for body in "012":
        publish(channel, "stream", body)
    assert consumed(channel, "stream", 3, **FIRST) == ["0", "1", "2"]
    channel = yield
    assert consumed(channel, "stream", 3, **FIRST) == ["0", "1", "2"]


def partitioned(channel):
    declare(channel, "partitioned", partitions=3)
    for number in range(9):
        headers = {"x-partition-key": f"key {number}"}
        publish(channel, "partitioned", f"{number}", headers=headers)
    taken = consumed(channel, "partitioned", 2)
    channel = yield
    assert sorted([*taken, *consumed(channel, "partitioned", 7)]) == list("012345678")


def consumer_group(channel):
    declare(channel, "grouped", queue_type="stream", partitions=1)
    for body in "0123":
        publish(channel, "grouped", body)
    group = {"x-consumer-group": "g", **FIRST}
    assert consumed(channel, "grouped", 2, **group) == ["0", "1"]
    channel = yield
    assert consumed(channel, "grouped", 2, **group) == ["2", "3"]


def message_groups(channel):
    declare(channel, "ordered", group_ordering=True)
    for body in ("a1", "a2", "b1"):
        publish(channel, "ordered", body, headers={"x-message-group": body[0]})
    channel = yield
    found = [channel.basic_get("ordered") for _ in range(3)]
    assert [body for _, _, body in found] == [b"a1", b"b1", None]
    channel.basic_ack(found[0][0].delivery_tag)
    assert channel.basic_get("ordered")[2] == b"a2"


def priority(channel):
    declare(channel, "ranked", max_priority=5)
    for number, rank in enumerate([1, 5, None, 3, 5]):
        publish(channel, "ranked", f"{number}", priority=rank)
    channel = yield
    assert drained(channel, "ranked") == ["1", "4", "3", "0", "2"]


def delayed(channel):
    declare(channel, "later")
    for body in ("later", "instead"):
        publish(channel, "later", body, headers={"x-delay": 1500, "x-schedule-id": "s"})
    channel = yield
    await_count(channel, "later", 1)
    assert drained(channel, "later") == ["instead"]


def celery(channel):
    declare(channel, "tasks", celery_eta=True)
    for seconds in (1.2, 0):
        eta = datetime.now(UTC) + timedelta(seconds=seconds)
        publish(channel, "tasks", f"{eta.timestamp()}", headers={"eta": eta.isoformat()})
    channel = yield
    await_count(channel, "tasks", 2)
    found = drained(channel, "tasks")
    assert found == sorted(found)
    assert time.time() >= float(found[-1])


def retry(channel):
    declare(channel, "tried", retry_delays=[500])
    publish(channel, "tried", "0")
    fail(channel, "tried")
    channel = yield
    await_count(channel, "tried", 1)
    assert channel.basic_get("tried", auto_ack=True)[1].headers["x-retry-count"] == 1


def retry_in_order(channel):
    declare(channel, "kept", retry_delays=[1000], retry_keep_order="key")
    for body in "12":
        publish(channel, "kept", body)
    fail(channel, "kept")
    channel = yield
    publish(channel, "kept", "3")
    assert consumed(channel, "kept", 3) == ["1", "2", "3"]


def dead_letter_topic(channel):
    declare(channel, "failing", dead_letter_topic=True)
    for body in "01":
        publish(channel, "failing", body)
    fail(channel, "failing")
    await_count(channel, "failing.dlq", 1)
    channel = yield
    assert drained(channel, "failing.dlq") == ["0"]
    assert drained(channel, "failing") == ["1"]


def window(channel):
    declare(channel, "once", dedup_window=True)
    publish(channel, "once", "0", message_id="0")
    assert drained(channel, "once") == ["0"]
    channel = yield
    for body in "01":
        publish(channel, "once", body, message_id=body)
    assert drained(channel, "once") == ["1"]


def prepared(channel):
    declare(channel, "half")
    for body in "abc":
        publish(channel, "half", body, message_id=body, headers={"x-prepare": True})
    assert decide(channel, "commit", "a") == "committed"
    channel = yield
    assert decide(channel, "commit", "a") == "unknown"
    publish(channel, "half", "again", message_id="b", headers={"x-prepare": True})
    assert decide(channel, "commit", "b") == "committed"
    assert decide(channel, "rollback", "c") == "rolled back"
    assert drained(channel, "half") == ["a", "b"]


def transaction(channel):
    for name in ("source", "target"):
        declare(channel, name)
    for body in "01":
        publish(channel, "source", body)
    channel = channel.connection.channel()
    channel.tx_select()
    for end in (channel.tx_commit, channel.tx_rollback):
        method, _, body = channel.basic_get("source")
        publish(channel, "target", body)
        channel.basic_ack(method.delivery_tag)
        end()
    channel.close()
    channel = yield
    assert drained(channel, "target") == ["0"]
    assert drained(channel, "source") == ["1"]


KINDS: list[Kind] = [
    *(classic, quorum, stream, partitioned, consumer_group, message_groups, priority),
    *(delayed, celery, retry, retry_in_order, dead_letter_topic, window, prepared, transaction),
]


@pytest.fixture(scope="module")
def reopened(tmp_path_factory, processes):
    """A connection to the second life of a node, and what each kind has begun in the first."""
    with BrokerProcess(tmp_path_factory.mktemp("reopened") / "data") as broker:
        connection, channel = connected(broker)
        begun = {}
        for kind in KINDS:
            begun[kind] = kind(channel)
            next(begun[kind])
        for _ in range(3):  # settlements are written behind, and may follow a write elsewhere
            time.sleep(SETTLE_INTERVAL_SECONDS)
            declare(channel, "classic")
        connection.close()
        broker.kill()
        broker.start()
        connection, _ = connected(broker)
        yield connection, begun
        connection.close()
        broker.check_untroubled()


@pytest.mark.covers("B-129", "C-201", "C-205", "C-207", "C-208", "C-211", "C-217")
@pytest.mark.smoke
@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_a_queue_is_what_it_was_before_the_kill(reopened, kind):
    connection, begun = reopened
    channel = connection.channel()
    channel.confirm_delivery()
    with suppress(StopIteration):
        begun[kind].send(channel)
    channel.close()
