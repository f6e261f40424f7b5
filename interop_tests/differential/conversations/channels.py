"""Opening, closing and misusing channels."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from pamqp import commands, header

from interop_tests.differential.client import raw_frame

if TYPE_CHECKING:
    from interop_tests.differential.talk import Talk


@pytest.mark.covers("channel")
def open_close_reopen(talk: Talk) -> None:
    connection = talk.connection()
    for _ in range(2):
        connection.send(1, commands.Channel.Open())
        connection.read()
        connection.send(1, commands.Channel.Close(200, "bye", 0, 0))
        connection.read()


@pytest.mark.covers("B-309")
def double_open(talk: Talk) -> None:
    channel = talk.channel()
    channel.call(commands.Channel.Open())


@pytest.mark.covers("B-309")
def method_on_an_unopened_channel(talk: Talk) -> None:
    connection = talk.connection()
    connection.send(5, commands.Queue.Declare(queue=talk.name("q")))
    connection.read()


@pytest.mark.covers("B-309")
def close_of_an_unopened_channel(talk: Talk) -> None:
    connection = talk.connection()
    connection.send(5, commands.Channel.Close(200, "bye", 0, 0))
    connection.read()


@pytest.mark.covers("channel")
def close_ok_that_nobody_asked_for(talk: Talk) -> None:
    connection = talk.connection()
    connection.channel()
    connection.send(1, commands.Channel.CloseOk())
    connection.read()


@pytest.mark.covers("B-309")
def method_after_close(talk: Talk) -> None:
    channel = talk.channel()
    channel.close()
    channel.declare(talk.name("q"))


@pytest.mark.covers("B-015")
def error_leaves_the_other_channel_alone(talk: Talk) -> None:
    connection = talk.connection()
    one, two = connection.channel(1), connection.channel(2)
    two.declare(talk.name("q"))
    one.count(talk.name("missing"))
    two.publish("", talk.name("q"))
    two.get(talk.name("q"))
    again = connection.channel(1)
    again.count(talk.name("q"))


@pytest.mark.covers("B-015")
def methods_after_an_error_are_ignored_until_close_ok(talk: Talk) -> None:
    connection = talk.connection()
    connection.polite = False
    channel = connection.channel()
    channel.count(talk.name("missing"))
    channel.send(commands.Queue.Declare(queue=talk.name("q")))
    channel.publish("", talk.name("q"))
    channel.expect_quiet()
    channel.send(commands.Channel.CloseOk())
    connection.channel(1).count(talk.name("q"))


@pytest.mark.covers("B-015")
def close_crossing_the_error(talk: Talk) -> None:
    connection = talk.connection()
    connection.polite = False
    channel = connection.channel()
    channel.count(talk.name("missing"))
    channel.call(commands.Channel.Close(200, "bye", 0, 0))
    channel.send(commands.Channel.CloseOk())
    connection.channel(1).declare(talk.name("q"))


@pytest.mark.covers("channel", "B-314")
def flow_on_and_off(talk: Talk) -> None:
    channel = talk.channel()
    channel.call(commands.Channel.Flow(active=True))
    channel.call(commands.Channel.Flow(active=False))


@pytest.mark.covers("B-314")
def error_closes_the_connection_with_all_channels(talk: Talk) -> None:
    connection = talk.connection()
    connection.channel(2).declare(talk.name("q"), exclusive=True)
    connection.channel(1).call(commands.Basic.Qos(10, 0, False))


@pytest.mark.covers("B-308")
def methods_a_client_must_not_send(talk: Talk) -> None:
    one = talk.channel()
    deliver = commands.Basic.Deliver("tag", 1, False, "", "q")
    one.send(deliver, header.ContentHeader(0, 0))
    one.read()
    talk.channel().call(commands.Queue.DeclareOk("q", 0, 0))
    talk.channel().call(commands.Basic.ConsumeOk("tag"))


@pytest.mark.covers("access.request")
def access_request(talk: Talk) -> None:
    connection = talk.connection()
    connection.channel()
    payload = b"\x00\x1e\x00\x0a" + b"\x05/data" + b"\x1f"
    connection.send_raw(raw_frame(1, 1, payload), "access.request")
    connection.read()
