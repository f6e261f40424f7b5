"""basic.get, purge and delete: what counts, what is left, what goes with it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from pamqp import commands, frame

from interop_tests.differential.client import VALUES_OF_EVERY_TYPE, raw_frame

if TYPE_CHECKING:
    from interop_tests.differential.talk import Talk


@pytest.mark.covers("B-128", "basic.get", "B-201")
def get_and_get_empty(talk: Talk) -> None:
    channel = talk.channel()
    channel.declare(talk.name("q"))
    channel.get(talk.name("q"))
    for word in (b"one", b"two", b"three"):
        channel.publish("", talk.name("q"), word)
    channel.get(talk.name("q"))
    channel.get(talk.name("q"), no_ack=True)
    channel.count(talk.name("q"), 1)
    channel.ack(1)
    channel.get(talk.name("q"))
    channel.get(talk.name("q"))
    channel.get(talk.name("missing"))


@pytest.mark.covers("properties", "B-016")
def every_property_comes_back(talk: Talk) -> None:
    channel = talk.channel()
    channel.declare(talk.name("q"))
    channel.publish(
        "",
        talk.name("q"),
        b"body",
        content_type="text/plain",
        content_encoding="utf-8",
        headers={"s": "é", "i": 5, "l": 2**40, "n": -3, "b": True, "f": [1, "two", {"in": None}]},
        delivery_mode=2,
        priority=9,
        correlation_id="correlation",
        reply_to="somewhere",
        expiration="60000",
        message_id="message",
        message_type="kind",
        user_id="guest",
        app_id="tests",
    )
    channel.get(talk.name("q"))


@pytest.mark.covers("basic.publish")
def empty_and_large_bodies(talk: Talk) -> None:
    channel = talk.channel(frame_max=4096)
    channel.declare(talk.name("q"))
    channel.publish("", talk.name("q"), b"")
    channel.get(talk.name("q"))
    channel.publish("", talk.name("q"), b"x" * 4088)
    channel.get(talk.name("q"))


@pytest.mark.covers("basic.publish")
def body_in_many_frames(talk: Talk) -> None:
    small, large = talk.channel(frame_max=4096), talk.channel()
    large.declare(talk.name("q"))
    large.publish("", talk.name("q"), bytes(range(256)) * 400)
    large.count(talk.name("q"), 1)
    small.get(talk.name("q"))
    small.publish("", talk.name("q"), b"back")
    small.count(talk.name("q"), 1)


@pytest.mark.covers("queue.purge")
def purge_takes_the_ready_ones(talk: Talk) -> None:
    connection = talk.connection()
    channel = connection.channel(1)
    channel.declare(talk.name("q"))
    for word in (b"one", b"two", b"three"):
        channel.publish("", talk.name("q"), word)
    channel.get(talk.name("q"))
    channel.call(commands.Queue.Purge(queue=talk.name("q")))
    channel.nack(1)
    channel.get(talk.name("q"))
    channel.call(commands.Queue.Purge(queue=talk.name("q")))
    channel.call(commands.Queue.Purge(queue=talk.name("missing")))


@pytest.mark.covers("queue.delete")
def delete_says_how_many(talk: Talk) -> None:
    connection = talk.connection()
    channel = connection.channel(1)
    channel.declare(talk.name("q"))
    for word in (b"one", b"two", b"three"):
        channel.publish("", talk.name("q"), word)
    channel.get(talk.name("q"))
    channel.call(commands.Queue.Delete(queue=talk.name("q")))
    channel.call(commands.Queue.Delete(queue=talk.name("q")))
    channel.count(talk.name("q"))


@pytest.mark.covers("queue.delete", "B-210")
def delete_if_empty_and_if_unused(talk: Talk) -> None:
    connection = talk.connection()
    one = connection.channel(1)
    one.declare(talk.name("q"))
    one.publish("", talk.name("q"))
    one.call(commands.Queue.Delete(queue=talk.name("q"), if_empty=True))
    two = connection.channel(2)
    two.consume(talk.name("q"), "tag")
    two.read()
    two.call(commands.Queue.Delete(queue=talk.name("q"), if_unused=True))
    three = connection.channel(3)
    talk.await_messages(talk.name("q"), 1)
    three.call(commands.Queue.Delete(queue=talk.name("q"), if_unused=True))
    three.call(commands.Queue.Delete(queue=talk.name("missing"), if_unused=True, if_empty=True))


@pytest.mark.covers("basic.ack")
def ack_of_a_deleted_queues_message(talk: Talk) -> None:
    channel = talk.channel()
    channel.declare(talk.name("q"))
    channel.publish("", talk.name("q"))
    channel.get(talk.name("q"))
    channel.call(commands.Queue.Delete(queue=talk.name("q")))
    channel.ack(1)
    channel.declare(talk.name("q"))


@pytest.mark.covers("B-111")
def expired_messages_are_gone(talk: Talk) -> None:
    channel = talk.channel()
    channel.declare(talk.name("q"))
    channel.publish("", talk.name("q"), b"short-lived", expiration="1")
    channel.publish("", talk.name("q"), b"lasting")
    talk.await_messages(talk.name("q"), 1)
    channel.get(talk.name("q"))


@pytest.mark.covers("B-111", "B-212")
def expiration_of_wrong_value(talk: Talk) -> None:
    connection = talk.connection()
    connection.channel(1).declare(talk.name("q"))
    for number, value in enumerate(["soon", "-1", "1.5", "10s", " 5", str(2**40)], start=1):
        channel = connection.channel(number + 1)
        channel.publish("", talk.name("q"), expiration=value)
        channel.read_answer()


@pytest.mark.covers("B-107", "B-223")
def foreign_user_id(talk: Talk) -> None:
    channel = talk.channel()
    channel.publish("", talk.name("q"), user_id="somebody")
    channel.read_answer()


@pytest.mark.covers("B-144")
def length_limit_drops_the_oldest(talk: Talk) -> None:
    channel = talk.channel()
    channel.declare(talk.name("q"), arguments={"x-max-length": 2})
    for word in (b"one", b"two", b"three"):
        channel.publish("", talk.name("q"), word)
    channel.count(talk.name("q"), 2)
    channel.get(talk.name("q"))


@pytest.mark.covers("B-144", "B-101")
def length_limit_rejects_publishes(talk: Talk) -> None:
    channel = talk.channel()
    arguments = {"x-max-length": 1, "x-overflow": "reject-publish"}
    channel.declare(talk.name("q"), arguments=arguments)
    channel.call(commands.Confirm.Select())
    for tag, word in enumerate((b"one", b"two"), start=1):
        channel.publish("", talk.name("q"), word)
        answer = channel.read()
        assert answer.delivery_tag == tag
    channel.get(talk.name("q"))


@pytest.mark.covers("B-140")
def priorities_come_first(talk: Talk) -> None:
    channel = talk.channel()
    channel.declare(talk.name("q"), arguments={"x-max-priority": 5})
    for priority in (None, 1, 5, 3, 9, 0, 1):
        channel.publish("", talk.name("q"), b"%d" % (priority or 0), priority=priority)
    for _ in range(8):
        channel.get(talk.name("q"), no_ack=True)


@pytest.mark.covers("B-016", "properties")
def headers_of_every_type_come_back(talk: Talk) -> None:
    """Octet for octet; bytes are read here, for a client's decoder would hide the types."""
    values = b"".join(
        b"\x02h" + letter + letter + value for letter, value in VALUES_OF_EVERY_TYPE.items()
    )
    properties = b"\x20\x00" + len(values).to_bytes(4, "big") + values
    channel = talk.channel()
    channel.declare(talk.name("q"))
    publish = frame.marshal(commands.Basic.Publish(exchange="", routing_key=talk.name("q")), 1)
    content_header = raw_frame(2, 1, b"\x00\x3c\x00\x00" + bytes(8) + properties)
    channel.connection.send_raw(publish + content_header, "headers with every type of value")
    channel.count(talk.name("q"), 1)
    channel.connection.send(1, commands.Basic.Get(0, talk.name("q"), True))
    get_ok = 7 + 2 + 2 + 8 + 1 + 1 + (1 + len(talk.name("q"))) + 4 + 1
    channel.connection.skip_bytes(get_ok)
    channel.connection.read_bytes(len(content_header))


@pytest.mark.covers("basic.get")
def get_beside_an_exclusive_consumer(talk: Talk) -> None:
    connection = talk.connection()
    one, two = connection.channel(1), connection.channel(2)
    one.declare(talk.name("q"))
    one.qos(1)
    one.consume(talk.name("q"), "alone", exclusive=True)
    for word in (b"one", b"two"):
        one.publish("", talk.name("q"), word)
    one.read()
    one.count(talk.name("q"), 1)
    two.get(talk.name("q"))
