"""Log lines of connections for the operator."""

import pytest
from pamqp import commands

from leveret.amqp.transport import LogLevel
from tests.support.client import Client
from tests.support.stage import Stage


@pytest.fixture
def stage():
    return Stage()


def lines(client, category="connection"):
    """Levels and texts of a category."""
    return [(level, text) for about, level, text in client.transport.logged if about == category]


def last(client, category="connection"):
    return lines(client, category)[-1]


def test_opened_and_closed_connection(stage):
    client = Client(stage).open()
    assert lines(client) == [
        (
            LogLevel.INFO,
            (
                "connection 127.0.0.1:50000 -> 127.0.0.1:5672 opened by user 'guest' in vhost '/', "
                "authenticated by PLAIN"
            ),
        )
    ]
    client.send(commands.Connection.Close(200, "bye", 0, 0), channel=0)
    level, text = last(client)
    assert level == LogLevel.INFO
    assert "closed by the client, after 0.0 s (user 'guest', vhost '/')" in text
    client.transport.lose()
    assert len(lines(client)) == 2


def test_channel_error_has_code_text_method_and_whose_it_is(stage):
    client = Client(stage).open()
    client.send(commands.Queue.Declare(queue="none", passive=True))
    assert lines(client, "channel") == [
        (
            LogLevel.WARNING,
            (
                "channel 1 of connection 127.0.0.1:50000 -> 127.0.0.1:5672 closed with 404 "
                "NOT_FOUND on queue.declare: no queue 'none' in vhost '/' (user 'guest', vhost '/')"
            ),
        )
    ]


def test_inequivalent_argument_is_told(stage):
    client = Client(stage).open()
    client.declare("q", durable=True)
    client.send(commands.Queue.Declare(queue="q", durable=False))
    assert (
        "406 PRECONDITION_FAILED on queue.declare: inequivalent arg 'durable'"
        in (last(client, "channel")[1])
    )


def test_connection_error_is_told(stage):
    client = Client(stage).open()
    client.send(commands.Channel.Open(), channel=1)
    level, text = last(client)
    assert level == LogLevel.WARNING
    assert "closed with 504 CHANNEL_ERROR on channel.open: second 'channel.open' seen" in text


def test_lost_connection_is_told_once(stage):
    client = Client(stage).open()
    client.transport.lose()
    level, text = last(client)
    assert level == LogLevel.WARNING
    assert "lost: the client closed the socket without connection.close, after 0.0 s" in text


def test_port_check_is_no_news(stage):
    client = Client(stage)
    client.transport.lose()
    assert last(client)[0] == LogLevel.DEBUG


@pytest.mark.parametrize(
    ("said", "text"),
    [
        (b"GET / HTTP/1.1\r\n", "it began with an HTTP request"),
        (b"\x16\x03\x01\x02\x00\x01", "a TLS handshake on the port without TLS"),
        (b"AMQP\x00\x01\x00\x00", "the header of AMQP 1-0-0"),
        (b"PROXY TCP4 1.1.1.1", "a PROXY header"),
        (b"hello wor\nld", "it began with 'hello wo'"),
    ],
)
def test_strange_protocol_is_named(stage, said, text):
    client = Client(stage)
    client.transport.connection.received(memoryview(said))
    level, line = last(client)
    assert level == LogLevel.WARNING
    assert text in line
    assert "\n" not in line
