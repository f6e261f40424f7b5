"""Frames that are wrong: every one gets its documented answer, and only its connection suffers."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from pamqp import body, commands, frame, header

from interop_tests.differential.client import raw_frame

if TYPE_CHECKING:
    from interop_tests.differential.client import Connection
    from interop_tests.differential.talk import Talk

METHOD, HEADER, BODY, HEARTBEAT = 1, 2, 3, 8
PUBLISH = commands.Basic.Publish(exchange="", routing_key="nobody")


def _say(talk: Talk, data: bytes, what: str, *, frame_max: int = 131072) -> Connection:
    connection = talk.connection(frame_max=frame_max)
    connection.channel(1)
    connection.send_raw(data, what)
    connection.read()
    return connection


@pytest.mark.covers("B-310")
def unknown_frame_type(talk: Talk) -> None:
    _say(talk, raw_frame(7, 1, b"what"), "frame of type 7")


@pytest.mark.covers("B-310")
def unknown_frame_type_on_channel_0(talk: Talk) -> None:
    _say(talk, raw_frame(7, 0, b"what"), "frame of type 7 on channel 0")


@pytest.mark.covers("B-310")
def wrong_frame_end(talk: Talk) -> None:
    payload = frame.marshal(commands.Basic.Qos(0, 1, False), 1)[7:-1]
    _say(talk, raw_frame(METHOD, 1, payload, end=b"\x00"), "basic.qos with frame end 0")


@pytest.mark.covers("B-310")
def frame_larger_than_agreed(talk: Talk) -> None:
    data = frame.marshal(PUBLISH, 1) + raw_frame(BODY, 1, b"x" * 5000)
    _say(talk, data, "frame of 5000 bytes", frame_max=4096)


@pytest.mark.covers("B-310")
def frame_larger_than_the_default(talk: Talk) -> None:
    _say(talk, b"\x03\x00\x01\x7f\xff\xff\xff" + b"x" * 100, "frame that says 2 GiB")


@pytest.mark.covers("B-005")
def frame_of_exactly_the_agreed_size(talk: Talk) -> None:
    connection = talk.connection(frame_max=4096)
    channel = connection.channel(1)
    channel.declare(talk.name("q"))
    channel.publish("", talk.name("q"), b"x" * (4096 - 8))
    channel.count(talk.name("q"), 1)


@pytest.mark.covers("B-308")
def unknown_method(talk: Talk) -> None:
    _say(talk, raw_frame(METHOD, 1, b"\x00\x3c\x03\xe7"), "method 60.999")


@pytest.mark.covers("B-308")
def unknown_class(talk: Talk) -> None:
    _say(talk, raw_frame(METHOD, 1, b"\x27\x0f\x00\x01"), "method 9999.1")


@pytest.mark.covers("B-310")
def method_cut_short(talk: Talk) -> None:
    _say(talk, raw_frame(METHOD, 1, b"\x00\x32\x00\x0a\x00\x00\x09q"), "queue.declare cut short")


@pytest.mark.covers("B-310")
def method_with_bytes_left_over(talk: Talk) -> None:
    payload = frame.marshal(commands.Basic.Qos(0, 1, False), 1)[7:-1]
    _say(talk, raw_frame(METHOD, 1, payload + b"more"), "basic.qos with bytes left over")


@pytest.mark.covers("B-310")
def empty_method_frame(talk: Talk) -> None:
    _say(talk, raw_frame(METHOD, 1, b""), "empty method frame")


@pytest.mark.covers("B-311")
def header_without_method(talk: Talk) -> None:
    _say(talk, frame.marshal(header.ContentHeader(0, 0), 1), "content header without method")


@pytest.mark.covers("B-311")
def body_without_method(talk: Talk) -> None:
    _say(talk, raw_frame(BODY, 1, b"body"), "content body without method")


@pytest.mark.covers("B-311")
def method_instead_of_header(talk: Talk) -> None:
    data = frame.marshal(PUBLISH, 1) + frame.marshal(PUBLISH, 1)
    _say(talk, data, "basic.publish, basic.publish")


@pytest.mark.covers("B-311")
def body_instead_of_header(talk: Talk) -> None:
    data = frame.marshal(PUBLISH, 1) + raw_frame(BODY, 1, b"body")
    _say(talk, data, "basic.publish, content body")


@pytest.mark.covers("B-311")
def method_instead_of_body(talk: Talk) -> None:
    content_header = frame.marshal(header.ContentHeader(0, 10), 1)
    data = frame.marshal(PUBLISH, 1) + content_header + frame.marshal(PUBLISH, 1)
    _say(talk, data, "basic.publish, header, basic.publish")


@pytest.mark.covers("B-311")
def header_of_another_class(talk: Talk) -> None:
    payload = b"\x00\x32\x00\x00" + (4).to_bytes(8, "big") + b"\x00\x00"
    data = frame.marshal(PUBLISH, 1) + raw_frame(HEADER, 1, payload)
    _say(talk, data, "basic.publish, header of class 50")


@pytest.mark.covers("B-311")
def second_header(talk: Talk) -> None:
    content_header = frame.marshal(header.ContentHeader(0, 10), 1)
    _say(talk, frame.marshal(PUBLISH, 1) + content_header * 2, "basic.publish, two headers")


@pytest.mark.covers("B-310")
def body_longer_than_announced(talk: Talk) -> None:
    content_header = frame.marshal(header.ContentHeader(0, 4), 1)
    data = frame.marshal(PUBLISH, 1) + content_header + raw_frame(BODY, 1, b"too long")
    connection = talk.connection()
    connection.channel(1)
    connection.send_raw(data, "basic.publish of 4 bytes, 8 sent")
    connection.expect_quiet()


@pytest.mark.covers("B-311")
def body_for_an_empty_message(talk: Talk) -> None:
    content_header = frame.marshal(header.ContentHeader(0, 0), 1)
    data = frame.marshal(PUBLISH, 1) + content_header + raw_frame(BODY, 1, b"body")
    _say(talk, data, "basic.publish of 0 bytes, 4 sent")


@pytest.mark.covers("basic.publish")
def empty_body_frames_in_between(talk: Talk) -> None:
    channel = talk.channel()
    channel.declare(talk.name("q"))
    publish = commands.Basic.Publish(exchange="", routing_key=talk.name("q"))
    channel.send(publish, header.ContentHeader(0, 8))
    channel.send(body.ContentBody(b""), body.ContentBody(b"half"), body.ContentBody(b""))
    channel.send(body.ContentBody(b"half"))
    channel.get(talk.name("q"))


@pytest.mark.covers("basic.publish")
def two_channels_interleaved(talk: Talk) -> None:
    connection = talk.connection()
    one, two = connection.channel(1), connection.channel(2)
    one.declare(talk.name("q"))
    publish = commands.Basic.Publish(exchange="", routing_key=talk.name("q"))
    one.send(publish, header.ContentHeader(0, 4))
    two.publish("", talk.name("q"), b"whole")
    two.count("amq.none")
    one.send(body.ContentBody(b"half"))
    one.get(talk.name("q"))
    one.get(talk.name("q"))


@pytest.mark.covers("B-018", "B-214")
def oversized_message(talk: Talk) -> None:
    channel = talk.channel()
    announced = header.ContentHeader(0, 2**40)
    channel.send(PUBLISH, announced)
    channel.expect_quiet()


@pytest.mark.covers("B-309")
def channel_method_on_channel_0(talk: Talk) -> None:
    connection = talk.connection()
    connection.send(0, commands.Channel.Open())
    connection.read()


@pytest.mark.covers("B-309")
def queue_method_on_channel_0(talk: Talk) -> None:
    connection = talk.connection()
    connection.send(0, commands.Queue.Declare(queue=talk.name("q")))
    connection.read()


@pytest.mark.covers("B-309")
def connection_method_on_a_channel(talk: Talk) -> None:
    channel = talk.channel()
    channel.call(commands.Connection.Open("/"))


@pytest.mark.covers("B-311")
def content_on_channel_0(talk: Talk) -> None:
    _say(talk, frame.marshal(header.ContentHeader(0, 4), 0), "content header on channel 0")
    _say(talk, raw_frame(BODY, 0, b"body"), "content body on channel 0")


@pytest.mark.covers("B-310")
def heartbeat_on_another_channel(talk: Talk) -> None:
    connection = talk.connection()
    connection.channel(1)
    connection.send_raw(raw_frame(HEARTBEAT, 1, b""), "heartbeat on channel 1")
    connection.read()


@pytest.mark.covers("B-310")
def heartbeat_with_content(talk: Talk) -> None:
    connection = talk.connection()
    connection.send_raw(raw_frame(HEARTBEAT, 0, b"boom"), "heartbeat with 4 bytes")
    connection.read()


@pytest.mark.covers("B-310")
def table_that_lies_about_its_length(talk: Talk) -> None:
    payload = b"\x00\x32\x00\x0a\x00\x00\x01q\x00" + b"\x00\x00\x00\xff" + b"\x01aI\x00\x00\x00\x01"
    _say(talk, raw_frame(METHOD, 1, payload), "queue.declare, table longer than the frame")


@pytest.mark.covers("B-310")
def table_with_an_unknown_type(talk: Talk) -> None:
    payload = b"\x00\x32\x00\x0a\x00\x00\x01q\x00" + b"\x00\x00\x00\x04" + b"\x01aZ\x01"
    _say(talk, raw_frame(METHOD, 1, payload), "queue.declare, value of type Z")


@pytest.mark.covers("B-016")
def name_that_is_not_utf8(talk: Talk) -> None:
    payload = b"\x00\x32\x00\x0a\x00\x00\x02\xff\xfe\x00" + b"\x00\x00\x00\x00"
    _say(talk, raw_frame(METHOD, 1, payload), "queue.declare of \\xff\\xfe")


@pytest.mark.covers("B-310")
def header_with_properties_cut_short(talk: Talk) -> None:
    payload = b"\x00\x3c\x00\x00" + (0).to_bytes(8, "big") + b"\x80\x00" + b"\xff"
    data = frame.marshal(PUBLISH, 1) + raw_frame(HEADER, 1, payload)
    _say(talk, data, "basic.publish, header with content-type cut short")


@pytest.mark.covers("basic.publish")
def byte_by_byte(talk: Talk) -> None:
    channel = talk.channel()
    channel.declare(talk.name("q"))
    publish = commands.Basic.Publish(exchange="", routing_key=talk.name("q"))
    parts: list[frame.FrameTypes] = [
        publish,
        header.ContentHeader(0, 5),
        body.ContentBody(b"crumb"),
    ]
    for byte in b"".join(frame.marshal(part, 1) for part in parts):
        channel.connection.send_bytes(bytes([byte]))
    talk.await_messages(talk.name("q"), 1)
    channel.get(talk.name("q"))


def another_connection_does_not_notice(talk: Talk) -> None:
    good = talk.channel()
    good.declare(talk.name("q"), exclusive=True)
    bad = talk.connection()
    bad.send_raw(b"\xff" * 200, "200 bytes of 0xff")
    bad.read()
    good.publish("", talk.name("q"))
    good.get(talk.name("q"))
