"""The machine of a shovel, told step by step."""

import pytest

from leveret.features.shovels.parameters import ShovelDefinition
from leveret.features.shovels.rewriting import MessageRewriter
from leveret.features.shovels.transfer import (
    Block,
    Complete,
    Delivered,
    ForwardMessage,
    Settle,
    ShovelTransfer,
    TransferError,
)
from leveret.ports.contents import decode_properties, encode_properties

HEADER = encode_properties({"headers": {"a": 1}}, 2)


def transfer(remaining=None, **changes):
    value = {"src-uri": "amqp://", "dest-uri": "amqp://", "src-queue": "a", "dest-queue": "b"}
    value = {key: each for key, each in {**value, **changes}.items() if each is not None}
    shovel = ShovelDefinition.parse("v", "s", value)
    return ShovelTransfer(shovel, MessageRewriter(shovel, "c", "amqp://x", "amqp://y"), remaining)


def message(tag, header=HEADER):
    return Delivered(tag, "e", "k", header, b"hi")


PUBLISH = ForwardMessage("", "b", HEADER, b"hi", mandatory=True)


def test_a_message_is_acknowledged_once_it_is_confirmed():
    moving = transfer()
    assert moving.delivered(message(10), 0) == [PUBLISH]
    assert moving.delivered(message(11), 0) == [PUBLISH]
    assert moving.delivered(message(12), 0) == [PUBLISH]
    assert moving.confirmed(2, multiple=False) == [Settle(11)]
    assert moving.confirmed(3, multiple=True) == [Settle(12, multiple=True)]
    assert moving.confirmed(3, multiple=True) == []
    assert moving.forwarded == 3


def test_what_is_refused_returns_to_its_queue():
    moving = transfer()
    for tag in (1, 2, 3):
        moving.delivered(message(tag), 0)
    assert moving.refused(1, multiple=False) == [Settle(1, requeue=True)]
    assert moving.refused(0, multiple=True) == [Settle(3, multiple=True, requeue=True)]


def test_acknowledged_with_the_publish():
    moving = transfer(**{"ack-mode": "on-publish"})
    assert moving.delivered(message(1), 0) == [PUBLISH._replace(mandatory=False), Settle(1)]
    assert moving.confirmed(1, multiple=False) == []


def test_not_acknowledged_at_all():
    moving = transfer(**{"ack-mode": "no-ack"})
    assert moving.delivered(message(1), 0) == [PUBLISH._replace(mandatory=False)]


def test_it_is_complete_once_the_last_message_is_confirmed():
    moving = transfer(remaining=2)
    moving.delivered(message(1), 0)
    moving.delivered(message(2), 0)
    assert moving.delivered(message(3), 0) == []
    assert moving.confirmed(1, multiple=False) == [Settle(1)]
    assert moving.confirmed(2, multiple=False) == [Settle(2), Complete()]
    assert (moving.remaining, moving.unpublished) == (0, 0)


def test_nothing_is_published_while_it_is_blocked():
    moving = transfer()
    moving.blocked(Block.FLOW)
    assert moving.state == "flow"
    moving.blocked(Block.BLOCKED)
    assert moving.delivered(message(1), 0) == []
    assert (moving.state, moving.accepts, moving.pending_count) == ("blocked", False, 1)
    assert not moving.unblocked(Block.BLOCKED)
    assert moving.unblocked(Block.FLOW)
    assert moving.next_pending(0) == [PUBLISH]
    assert (moving.state, moving.accepts, moving.pending_count) == ("running", True, 0)


def test_a_confirm_that_nobody_awaits_ends_it():
    with pytest.raises(TransferError, match="has confirmed 1, which is not awaited"):
        transfer().confirmed(1, multiple=False)


def test_a_queue_that_is_gone_ends_it():
    with pytest.raises(TransferError, match="the destination queue is gone"):
        transfer().returned()


@pytest.mark.parametrize(
    ("changes", "address"),
    [
        ({"dest-queue": None}, ("e", "k")),
        ({"dest-queue": None, "dest-exchange": "f"}, ("f", "k")),
        ({"dest-queue": None, "dest-exchange-key": "l"}, ("e", "l")),
        ({"dest-queue": None, "dest-exchange": "f", "dest-exchange-key": "l"}, ("f", "l")),
    ],
)
def test_where_messages_go(changes, address):
    (publish,) = transfer(**changes).delivered(message(1), 0)
    assert (publish.exchange, publish.routing_key, publish.mandatory) == (*address, False)


def test_properties_and_headers_are_set():
    moving = transfer(
        **{
            "dest-publish-properties": {"delivery_mode": 2, "timestamp": 5, "app_id": "z"},
            "dest-add-forward-headers": True,
            "dest-add-timestamp-header": True,
        }
    )
    (publish,) = moving.delivered(message(1), 7_500)
    (again,) = moving.delivered(message(2, publish.header), 8_500)
    properties = decode_properties(again.header)
    assert (properties["delivery_mode"], properties["app_id"]) == (2, "z")
    assert properties["timestamp"] == 5
    route = {
        "shovelled-by": "c",
        "shovel-type": "dynamic",
        "shovel-name": "s",
        "shovel-vhost": "v",
        "src-uri": "amqp://x",
        "dest-uri": "amqp://y",
        "src-queue": "a",
        "dest-queue": "b",
    }
    assert properties["headers"] == {
        "a": 1,
        "x-shovelled": [route, route],
        "x-shovelled-timestamp": 8,
    }


def test_a_header_that_is_broken_ends_it():
    moving = transfer(**{"dest-add-timestamp-header": True})
    with pytest.raises(TransferError, match="not AMQP's"):
        moving.delivered(message(1, HEADER[:-1]), 0)
