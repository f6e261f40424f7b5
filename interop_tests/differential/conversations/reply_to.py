"""Direct reply-to: answers that go through no queue."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from pamqp import commands

from interop_tests.differential.client import unchecked

if TYPE_CHECKING:
    from interop_tests.differential.client import Channel
    from interop_tests.differential.talk import Talk

REPLY_TO = "amq.rabbitmq.reply-to"


def _asked(talk: Talk, requester: Channel, responder: Channel) -> str:
    """Ask a question; returns the address that its answer is to go to."""
    requester.consume(REPLY_TO, "replies", no_ack=True)
    responder.declare(talk.name("rpc"))
    requester.publish("", talk.name("rpc"), b"question", reply_to=REPLY_TO, message_id="m")
    talk.await_messages(talk.name("rpc"), 1)
    responder.get(talk.name("rpc"), no_ack=True)
    assert responder.connection.last_content is not None
    properties = responder.connection.last_content[0].properties
    return str(properties.reply_to)


def _declare(channel: Channel, address: str, *, passive: bool = False) -> None:
    """RabbitMQ's addresses have characters that pamqp finds wrong in a queue's name."""
    channel.call(unchecked(commands.Queue.Declare, queue=address, passive=passive))


@pytest.mark.covers("B-110")
def direct_reply_to(talk: Talk) -> None:
    requester, responder = talk.channel(), talk.channel()
    address = _asked(talk, requester, responder)
    _declare(responder, address, passive=True)
    _declare(responder, address)
    responder.publish("", address, b"answer", correlation_id="1", headers={"a": "b"})
    requester.read()
    responder.publish("", address, b"another answer")
    requester.read()
    requester.call(commands.Basic.Cancel("replies"))
    _declare(responder, address, passive=True)


@pytest.mark.covers("B-110")
def direct_reply_to_a_requester_that_is_gone(talk: Talk) -> None:
    requester, responder = talk.channel(), talk.channel()
    address = _asked(talk, requester, responder)
    requester.close()
    responder.publish("", address, b"too late")
    responder.confirm()
    responder.publish("", address, b"too late and confirmed")
    responder.read()
    _declare(responder, address)


@pytest.mark.covers("B-110")
def direct_reply_to_is_mandatory(talk: Talk) -> None:
    requester, responder = talk.channel(), talk.channel()
    address = _asked(talk, requester, responder)
    responder.publish("", address, b"answer", mandatory=True)
    requester.read()
    responder.expect_quiet()


@pytest.mark.covers("B-110")
def direct_reply_to_through_an_exchange_is_none(talk: Talk) -> None:
    requester, responder = talk.channel(), talk.channel()
    address = _asked(talk, requester, responder)
    responder.publish("amq.direct", address, b"answer", mandatory=True)
    responder.read()
    requester.expect_quiet()


@pytest.mark.covers("B-110")
def direct_reply_to_in_a_transaction(talk: Talk) -> None:
    requester, responder = talk.channel(), talk.channel()
    address = _asked(talk, requester, responder)
    responder.call(commands.Tx.Select())
    responder.publish("", address, b"answer")
    requester.expect_quiet()
    responder.call(commands.Tx.Commit())
    requester.read()


@pytest.mark.covers("B-110")
def direct_reply_to_once_more(talk: Talk) -> None:
    channel = talk.channel()
    channel.consume(REPLY_TO, "replies", no_ack=True)
    channel.call(commands.Basic.Cancel("replies"))
    channel.consume(REPLY_TO, "again", no_ack=True)
    channel.consume(REPLY_TO, "twice", no_ack=True)


@pytest.mark.covers("B-215", "B-233")
def direct_reply_to_misused(talk: Talk) -> None:
    connection = talk.connection()
    connection.channel(1).consume(REPLY_TO, "replies")
    without = connection.channel(2)
    without.publish("", talk.name("rpc"), reply_to=REPLY_TO)
    without.read_answer()
    connection.channel(3).declare(REPLY_TO, passive=True)
    connection.channel(4).bind(REPLY_TO, "amq.direct", "k")
    connection.channel(5).call(commands.Queue.Unbind(0, REPLY_TO, "amq.direct", "k"))
    connection.channel(6).declare(f"{REPLY_TO}.nobody", passive=True)
    connection.channel(7).bind(f"{REPLY_TO}.nobody", "amq.direct", "k")


@pytest.mark.covers("B-307")
def direct_reply_to_with_a_tag_in_use(talk: Talk) -> None:
    channel = talk.channel()
    channel.declare(talk.name("q"))
    channel.consume(talk.name("q"), "tag")
    channel.consume(REPLY_TO, "tag", no_ack=True)


@pytest.mark.covers("B-314")
def get_from_direct_reply_to(talk: Talk) -> None:
    talk.channel().get(REPLY_TO)
