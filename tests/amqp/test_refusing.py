"""Answer that a client gets from a node that cannot serve it."""

import socket
import threading
from contextlib import contextmanager

import pika
import pytest
from pamqp import frame
from pika.exceptions import AMQPError

from leveret.amqp.handshake import start
from leveret.amqp.refusing import refusal_of_clients
from leveret.config import Configuration
from leveret.errors import ConnectionClosingError
from tests.support.client import PROTOCOL_HEADER
from tests.support.waiting import LIMIT_SECONDS

TEXT = "no node of the cluster leads: try again in some seconds"
TOLD = f"CONNECTION_FORCED - {TEXT}"
REFUSAL = refusal_of_clients(Configuration(), ConnectionClosingError(320, TEXT))


def methods(data):
    """Return the methods of some frames, of which nothing may be left."""
    found = []
    while data:
        size, channel, method = frame.unmarshal(data)
        assert channel == 0
        found.append(method)
        data = data[size:]
    return found


def test_it_is_a_start_and_a_close():
    begun, close = methods(REFUSAL)
    assert (begun.name, close.name) == ("Connection.Start", "Connection.Close")
    assert (close.reply_code, close.reply_text) == (320, TOLD)
    assert (close.class_id, close.method_id) == (0, 0)


def test_the_start_is_that_of_a_node_which_serves():
    begun = methods(REFUSAL)[0]
    usual = start(Configuration(), begun.server_properties["platform"], ["PLAIN"])
    assert begun.server_properties == usual.server_properties
    assert (begun.version_major, begun.version_minor) == (0, 9)
    assert begun.server_properties["capabilities"]["authentication_failure_close"] is True
    assert {"PLAIN", "EXTERNAL"} <= set(begun.mechanisms.split())


@contextmanager
def refusing():
    """A server that refuses a client, and what that has said first."""
    said = []

    def serve(listening):
        client, _ = listening.accept()
        with client:
            client.settimeout(LIMIT_SECONDS)
            said.append(client.recv(len(PROTOCOL_HEADER), socket.MSG_WAITALL))
            client.sendall(REFUSAL)
            while client.recv(4096):
                pass

    with socket.create_server(("127.0.0.1", 0)) as listening:
        listening.settimeout(LIMIT_SECONDS)
        serving = threading.Thread(target=serve, args=(listening,))
        serving.start()
        try:
            yield listening.getsockname()[1], said
        finally:
            serving.join(LIMIT_SECONDS)
            assert not serving.is_alive()


def test_a_client_is_told_why():
    with refusing() as (port, said):
        parameters = pika.ConnectionParameters(
            "127.0.0.1",
            port,
            socket_timeout=LIMIT_SECONDS,
            stack_timeout=LIMIT_SECONDS,
            blocked_connection_timeout=LIMIT_SECONDS,
            connection_attempts=1,
        )
        with pytest.raises(AMQPError) as caught:
            pika.BlockingConnection(parameters)
        assert TEXT in repr(caught.value)
    assert said == [PROTOCOL_HEADER]
