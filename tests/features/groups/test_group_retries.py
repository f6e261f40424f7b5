"""Retries of consumer groups: in place, by the queue's policy, and for one group only."""

import asyncio

import pytest
from pamqp import commands
from pamqp.header import ContentHeader

from leveret.features.groups.commands import group_commit_offsets, group_reset_offsets
from leveret.features.retry.retrying import RetryTopic
from tests.features.groups.context import GroupContext
from tests.recovery.node import Node
from tests.support.client import Client

KINDS = {
    "classic": {"x-retention": "1d"},
    "quorum": {"x-queue-type": "quorum", "x-retention": "1d"},
}
LADDER = {"x-retry-delays": [1000, 5000]}


@pytest.fixture(params=KINDS)
def kind(request):
    return KINDS[request.param]


def declare(publisher, kind, **arguments):
    publisher.declare("q", durable=True, arguments=kind | LADDER | arguments)
    publisher.declare("q.dlq", durable=True)


def join(stage, group="g", **arguments):
    member = Client(stage).open()
    member.prefetch(10)
    member.consume("q", "c", arguments={"x-consumer-group": group} | arguments)
    return member


def received(member):
    """Return (body, headers) of what came."""
    headers = []
    bodies = []
    for _, value in member.received():
        if isinstance(value, ContentHeader):
            headers.append(value.properties.headers)
        elif hasattr(value, "value"):
            bodies.append(value.value)
    return list(zip(bodies, headers, strict=True))


def bodies(member):
    return [body for body, _ in received(member)]


def reject(member, tag):
    member.send(commands.Basic.Reject(tag, requeue=False))


def subscription(stage, group="g"):
    return stage.broker.groups.of_queue(stage.queue("q"))[group].subscriptions[0]


def dead_letters(publisher):
    publisher.send(commands.Basic.Get(queue="q.dlq", no_ack=True))
    return received(publisher)


def test_a_rejected_message_comes_again_to_its_group_after_its_delay(stage, publisher, kind):
    declare(publisher, kind)
    one, other = join(stage), join(stage, "other")
    publisher.publish("q", b"0", b"1")
    assert bodies(one) == bodies(other) == [b"0", b"1"]
    reject(one, 1)
    stage.advance(0.9)
    assert bodies(one) == []
    assert (subscription(stage).lag, subscription(stage).delayed_count) == (2, 1)
    stage.advance(0.2)
    [(body, headers)] = received(one)
    assert (body, headers["x-retry-count"], headers["x-offset"]) == (b"0", 1, 0)
    reject(one, 3)
    stage.advance(4)
    assert bodies(one) == []
    stage.advance(1.1)
    [(_, headers)] = received(one)
    assert headers["x-retry-count"] == 2
    assert bodies(other) == []
    queue = stage.queue("q")
    assert queue.log.end == 2  # nobody else gets anything more
    assert queue.extension(RetryTopic) is None


def test_after_the_last_retry_it_is_dead_lettered_with_its_failure(stage, publisher, kind):
    declare(publisher, kind)
    one = join(stage)
    forged = {"own": "x", "x-retry-count": 99, "x-first-failure-at": 1}
    publisher.publish("q", b"0", headers=forged)
    for tag in (1, 2, 3):
        assert bodies(one) == [b"0"]
        reject(one, tag)
        stage.advance(6)
    assert bodies(one) == []
    assert subscription(stage).lag == 0
    [(body, headers)] = dead_letters(publisher)
    assert (body, headers["own"], headers["x-retry-count"]) == (b"0", "x", 2)
    assert headers["x-last-failure-reason"] == "rejected"
    assert "x-first-failure-at" not in headers
    assert (headers["x-death"][0]["queue"], headers["x-death"][0]["reason"]) == ("q", "rejected")


def test_a_message_may_have_its_own_delays(stage, publisher, kind):
    declare(publisher, kind)
    one = join(stage)
    publisher.publish("q", b"0", headers={"x-retry-delays": [200]})
    assert bodies(one) == [b"0"]
    reject(one, 1)
    stage.advance(0.3)
    assert bodies(one) == [b"0"]
    reject(one, 2)
    assert len(dead_letters(publisher)) == 1


def test_other_returns_are_no_attempts(stage, publisher, kind):
    declare(publisher, kind)
    one = join(stage)
    publisher.publish("q", b"0")
    for tag in range(1, 6):
        assert bodies(one) == [b"0"]
        one.send(commands.Basic.Nack(tag, requeue=True))
    assert bodies(one) == [b"0"]
    reject(one, 6)
    stage.advance(1.1)
    [(_, headers)] = received(one)
    assert (headers["x-retry-count"], headers["x-delivery-count"]) == (1, 6)


def test_what_a_slow_member_holds_is_retried_where_the_policy_says_so(stage, publisher, kind):
    declare(publisher, kind, **{"x-retry-on": ["timeout"]})
    one = join(stage, **{"x-group-session": 5000})
    publisher.publish("q", b"0")
    assert bodies(one) == [b"0"]
    stage.advance(5.2)
    assert subscription(stage).delayed_count == 1
    two = join(stage)
    stage.advance(1.1)
    [(body, headers)] = received(two)
    assert (body, headers["x-retry-count"]) == (b"0", 1)


def test_a_partition_does_not_wait_for_what_is_delayed(stage, publisher, kind):
    declare(publisher, kind)
    one = join(stage)
    publisher.publish("q", b"0")
    assert bodies(one) == [b"0"]
    reject(one, 1)
    one.call(commands.Basic.Cancel("c"))
    two = join(stage)
    publisher.publish("q", b"1")
    assert bodies(two) == [b"1"]
    stage.advance(1.1)
    assert bodies(two) == [b"0"]


def test_what_is_removed_meanwhile_does_not_come_again(stage, publisher):
    declare(publisher, KINDS["classic"])
    one = join(stage)
    publisher.publish("q", b"0")
    publisher.publish("q", b"1")
    assert bodies(one) == [b"0", b"1"]
    reject(one, 1)
    one.send(commands.Basic.Ack(2))
    stage.queue("q").log.remove(0, 1)
    stage.advance(1.1)
    assert bodies(one) == []
    assert subscription(stage).lag == 0


@pytest.mark.parametrize("moved", ["commit", "reset"])
async def test_a_group_is_moved_while_its_messages_are_delayed(stage, publisher, moved, kind):
    declare(publisher, kind)
    one = join(stage)
    publisher.publish("q", b"0", b"1", b"2")
    assert len(bodies(one)) == 3
    for tag in (1, 3):
        reject(one, tag)
    one.send(commands.Basic.Ack(2))
    one.call(commands.Channel.Close(200, "", 0, 0))
    where = {"vhost": "/", "queue": "q", "name": "g"}
    if moved == "commit":
        rows = await group_commit_offsets(GroupContext(stage), **where, offsets={"0": 1})
        assert rows == [{"partition": 0, "before": 0, "after": 2}]
    else:
        await group_reset_offsets(GroupContext(stage), **where, to="2")
    assert bodies(join(stage)) == [b"2"]
    stage.advance(10)
    assert subscription(stage).lag == 1


def test_rejects_of_a_transaction_are_retried_when_it_commits(stage, publisher, kind):
    declare(publisher, kind)
    one = Client(stage).open()
    one.call(commands.Tx.Select())
    one.prefetch(10)
    one.consume("q", "c", arguments={"x-consumer-group": "g"})
    publisher.publish("q", b"0")
    assert bodies(one) == [b"0"]
    reject(one, 1)
    assert subscription(stage).delayed_count == 0
    one.call(commands.Tx.Commit())
    assert subscription(stage).delayed_count == 1


@pytest.mark.parametrize("end", [Node.close, Node.kill])
def test_the_number_of_retries_outlives_the_node_and_the_delay_does_not(kind, end):
    loop = asyncio.new_event_loop()
    node = Node(loop)
    declare(node.client, kind)
    node.client.publish("q", b"0")
    node.flush()
    where = {"x-stream-offset": "first"}
    member = join(node, **where)
    assert bodies(member) == [b"0"]
    reject(member, 1)
    node.flush()
    loop.run_until_complete(node.metadata.flush())
    if end is Node.close:
        for client in (node.client, member):
            client.transport.lose()
        node.run()
    end(node)
    node = node.next_life(keeps_state=end is Node.close)
    member = join(node, **where)
    [(body, headers)] = received(member)
    assert (body, headers["x-retry-count"]) == (b"0", 1)
    node.kill()
    loop.close()
