"""Consumer groups after an end of the node: what their members may have seen is flagged."""

from __future__ import annotations

import asyncio

import pytest
from pamqp import commands

from tests.recovery.node import Node

KINDS = {
    "stream": {"x-queue-type": "stream"},
    "partitioned": {"x-queue-type": "stream", "x-partitions": 2},
    "classic": {"x-retention": "1d"},
}
COUNT = 8


@pytest.fixture
def loop():
    loop = asyncio.new_event_loop()
    yield loop
    loop.close()


def join(node, group):
    node.client.prefetch(100)
    node.client.consume(
        "q", group, arguments={"x-consumer-group": group, "x-stream-offset": "first"}
    )
    node.run()
    return node.client.deliveries()


def next_life(node, end):
    node.flush()
    if end is Node.close:
        node.client.transport.lose()  # connections end first
        node.run()
    end(node)
    return node.next_life(keeps_state=end is Node.close)


@pytest.mark.parametrize("end", [Node.close, Node.kill])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("settled", [0, 1])
def test_what_a_member_held_is_flagged(loop, end, kind, settled):
    node = Node(loop)
    node.client.declare("q", durable=True, arguments=KINDS[kind])
    for number in range(COUNT):
        node.publish("q", b"%d" % number, headers={"x-partition-key": f"key-{number}"})
    first = join(node, "g")
    assert [delivery.redelivered for delivery in first] == [False] * COUNT
    for delivery in first[:settled]:
        node.client.send(commands.Basic.Ack(delivery.tag))
    node = next_life(node, end)
    again = join(node, "g")
    assert [delivery.redelivered for delivery in again] == [True] * (COUNT - settled)
    node.publish("q", b"later")
    assert [delivery.redelivered for delivery in node.client.deliveries()] == [False]
    node.kill()


@pytest.mark.parametrize("end", [Node.close, Node.kill])
@pytest.mark.parametrize("kind", KINDS)
def test_nothing_is_flagged_for_a_group_that_is_new(loop, end, kind):
    node = Node(loop)
    node.client.declare("q", durable=True, arguments=KINDS[kind])
    node.publish("q", *[b"%d" % number for number in range(COUNT)])
    join(node, "old")
    node = next_life(node, end)
    assert [delivery.redelivered for delivery in join(node, "new")] == [False] * COUNT
    node.kill()
