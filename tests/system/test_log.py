"""Log lines of a whole node, for whoever asks why something does not work."""

import datetime as dt
import json
import re
import socket
import subprocess
import sys
import time

import pika
import pytest

from leveret.cli.certs import make_certificates
from tests.harness.broker import BrokerProcess
from tests.support.waiting import LIMIT_SECONDS


@pytest.fixture
def node(tmp_path, processes):
    """Start a node with settings; it ends with the test."""
    started = []

    def start(**settings):
        broker = BrokerProcess(tmp_path / "data", **settings)
        started.append(broker)
        return broker.start()

    yield start
    for each in started:
        each.kill()


def line_with(broker, text):
    """The line in which the log says `text` (a pattern), as soon as it does."""
    deadline = time.monotonic() + LIMIT_SECONDS
    while time.monotonic() < deadline:
        for line in broker.log().splitlines():
            if re.search(text, line):
                return line
        time.sleep(0.02)
    raise AssertionError(f"no line with {text}:\n{broker.log()}")


def test_default_user_that_gets_in_from_elsewhere_is_told_at_each_start(node):
    broker = node(host="0.0.0.0", loopback_users="[]")
    line = line_with(broker, "user 'guest'")
    assert " WARNING " in line
    assert "may connect from other machines" in line


def test_default_user_on_loopback_is_no_reason_to_warn(node):
    broker = node(host="0.0.0.0", loopback_users="")
    line_with(broker, "LEVERET_LOOPBACK_USERS is empty and counts as not set")
    broker.terminate()
    broker.wait()
    assert "user 'guest'" not in broker.log()


def refused(broker, user, password):
    parameters = pika.ConnectionParameters(
        "127.0.0.1",
        broker.port,
        credentials=pika.PlainCredentials(user, password),
        client_properties={"connection_name": "shop-1"},
    )
    with pytest.raises(pika.exceptions.AMQPConnectionError):
        pika.BlockingConnection(parameters).close()


def test_log_says_why_a_client_cannot_connect(node):
    broker = node(login_delay_seconds=0)
    refused(broker, "nobody", "x")
    assert "refused the login of user 'nobody' by PLAIN: unknown user" in line_with(
        broker, "'nobody'"
    )
    refused(broker, "guest", "x")
    assert line_with(broker, "user 'guest' by PLAIN").endswith("wrong password")
    parameters = pika.ConnectionParameters("127.0.0.1", broker.port, "nowhere")
    with pytest.raises(pika.exceptions.AMQPConnectionError):
        pika.BlockingConnection(parameters)
    line = line_with(broker, "530 NOT_ALLOWED on connection.open: vhost nowhere not found")
    assert " WARNING leveret.connection: connection 127.0.0.1:" in line


def test_log_says_why_a_channel_ends_and_how_connections_do(node):
    broker = node()
    parameters = pika.ConnectionParameters("127.0.0.1", broker.port)
    with pika.BlockingConnection(parameters) as connection:
        channel = connection.channel()
        channel.queue_declare("orders", durable=True)
        with pytest.raises(pika.exceptions.ChannelClosedByBroker):
            channel.queue_declare("orders", durable=False)
    line_with(broker, r"406 PRECONDITION_FAILED on queue\.declare: inequivalent arg 'durable'")
    line_with(broker, r"INFO leveret\.connection: .* opened by user 'guest' in vhost '/'")
    line_with(broker, r"INFO leveret\.connection: .* closed by the client, after \d")
    with socket.create_connection(("127.0.0.1", broker.port)) as browser:
        browser.sendall(b"GET / HTTP/1.1\r\nhost: localhost\r\n\r\n")
        line_with(broker, "it began with an HTTP request")


@pytest.mark.smoke
def test_start_and_stop_are_told_with_counts_and_times(node, tmp_path):
    broker = node(http=True)
    parameters = pika.ConnectionParameters("127.0.0.1", broker.port)
    with pika.BlockingConnection(parameters) as connection:
        channel = connection.channel()
        channel.confirm_delivery()
        channel.queue_declare("orders", durable=True)
        for _ in range(3):
            channel.basic_publish("", "orders", b"", pika.BasicProperties(delivery_mode=2))
    broker.stop()
    line_with(broker, r"starting leveret \S+ on Python 3\S+: node leveret@\S+, data directory /")
    line_with(broker, r"ready after \d+\.\d s: the web UI is at http://127\.0\.0\.1:\d+/")
    line_with(broker, "stopping: 0 connections are open")
    line_with(broker, r"stopped in \d+\.\d s")
    broker.start()
    line_with(broker, r"1 virtual hosts, 1 queues and 3 messages are there after \d")


def test_level_is_changed_while_the_node_runs(node):
    broker = node(log_connection_level="error")
    refused(broker, "nobody", "x")
    command = [sys.executable, "-m", "leveret", "node", "log-level", "--data-dir", broker.data]
    command += ["warning", "--category", "connection", "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert json.loads(done.stdout) == {
        "node": "info",
        "connection": "warning",
        "channel": "info",
    }
    refused(broker, "somebody", "x")
    line_with(broker, "'somebody'")
    assert "'nobody'" not in broker.log()


def test_flood_of_refused_logins_does_not_fill_the_disk(node):
    broker = node(login_delay_seconds=0, log_lines_per_second_max=1)
    for _ in range(40):
        with socket.create_connection(("127.0.0.1", broker.port)) as client:
            client.sendall(b"GET / HTTP/1.1\r\n\r\n")
            client.recv(100)
    line_with(broker, r"\d+ more lines of leveret\.connection \(warning\) were left out")
    assert 1 <= broker.log().count("an HTTP request") <= 15


def test_client_that_tls_refuses_is_told(node, tmp_path):
    now = dt.datetime.now(dt.UTC)
    make_certificates(tmp_path / "tls", ["127.0.0.1"], "guest", now)
    broker = node(
        tls_port=0,
        tls_certificate_file=tmp_path / "tls" / "server.pem",
        tls_key_file=tmp_path / "tls" / "server-key.pem",
    )
    port = int(re.search(r"amqps=\S+:(\d+)", broker.log())[1])
    with socket.create_connection(("127.0.0.1", port)) as client:
        client.sendall(b"AMQP\0\0\x09\x01")  # without TLS
        client.recv(100)
    line = line_with(broker, "ended before AMQP, while it brought a header or TLS")
    assert " WARNING leveret.connection: connection from 127.0.0.1:" in line
