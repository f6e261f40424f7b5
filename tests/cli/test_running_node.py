"""Administration of a node that runs, as its clients see it."""

import json
import os
import signal
import socket
import subprocess
import sys
from contextlib import contextmanager

import pika
import pika.exceptions
import pytest

from tests.process import running_node

FAST = "login_delay_seconds = 0.05\n"  # the guessing of passwords is not what is tested here


@pytest.fixture(scope="module")
def port(data_dir, tmp_path_factory):
    """One node for all tests that leave it as it was: each has users and vhosts of its own."""
    file = tmp_path_factory.mktemp("configuration") / "leveret.toml"
    file.write_text(FAST)
    with running_node(data_dir, "--config", str(file)) as port:
        yield port


@pytest.fixture
def leveret(data_dir):
    return commands_on(data_dir)


def commands_on(data_dir):
    def run(*arguments, stdin=""):
        command = [sys.executable, "-m", "leveret", *arguments, "--data-dir", data_dir]
        result = subprocess.run(command, input=stdin, capture_output=True, text=True, check=False)
        assert result.returncode == 0, result.stderr
        return result.stdout

    return run


@contextmanager
def connected(port, user="guest", password="guest", vhost="/"):
    parameters = pika.ConnectionParameters(
        "127.0.0.1", port, vhost, pika.PlainCredentials(user, password)
    )
    connection = pika.BlockingConnection(parameters)
    try:
        yield connection
    finally:
        if connection.is_open:
            connection.close()


def assert_login_refused(port, user, password):
    with (
        pytest.raises(pika.exceptions.ProbableAuthenticationError, match=r"\(403\)"),
        connected(port, user, password),
    ):
        pass


def test_new_user_enters_after_being_permitted(port, leveret):
    leveret("user", "add", "u", "--password-stdin", stdin="secret\n")
    with (
        pytest.raises(
            pika.exceptions.ProbableAccessDeniedError,
            match="access to vhost '/' refused for user 'u'",
        ),
        connected(port, "u", "secret"),
    ):
        pass
    leveret("permission", "set", "u", "^own-", "", "")
    with connected(port, "u", "secret") as connection:
        connection.channel().queue_declare("own-queue")
        with pytest.raises(
            pika.exceptions.ChannelClosedByBroker,
            match="configure access to queue 'queue' in vhost '/' refused for user 'u'",
        ):
            connection.channel().queue_declare("queue")


def test_withdrawn_permission_is_felt_on_an_open_connection(port, leveret):
    leveret("user", "add", "writer", "--password-stdin", stdin="secret\n")
    leveret("permission", "set", "writer", ".*", ".*", ".*")
    with connected(port, "writer", "secret") as connection:
        channel = connection.channel()
        channel.queue_declare("q")
        channel.confirm_delivery()
        channel.basic_publish("", "q", b"before")
        leveret("permission", "set", "writer", ".*", "^other", ".*")
        with pytest.raises(
            pika.exceptions.ChannelClosedByBroker,
            match=r"write access to exchange 'amq.default' in vhost '/' refused for user 'writer'",
        ):
            channel.basic_publish("", "q", b"after")


def test_wrong_old_and_deleted_passwords_are_refused(port, leveret):
    leveret("user", "add", "known", "--password-stdin", stdin="old\n")
    leveret("permission", "set", "known", ".*", ".*", ".*")
    with connected(port, "known", "old"):
        pass
    assert_login_refused(port, "known", "wrong")
    assert_login_refused(port, "nobody", "old")
    leveret("user", "set-password", "known", "--password-stdin", stdin="new\n")
    assert_login_refused(port, "known", "old")
    with connected(port, "known", "new"):
        pass
    leveret("user", "delete", "known", "--yes")
    assert_login_refused(port, "known", "new")


def test_vhost_comes_and_goes(port, leveret):
    leveret("vhost", "add", "v")
    leveret("permission", "set", "guest", ".*", ".*", ".*", "--vhost", "v")
    with connected(port, vhost="v") as connection:
        connection.channel().queue_declare("q", durable=True)
    leveret("vhost", "delete", "v")
    with (
        pytest.raises(pika.exceptions.ProbableAccessDeniedError, match="vhost v not found"),
        connected(port, vhost="v"),
    ):
        pass


def test_what_was_administered_survives_the_node(tmp_path):
    leveret = commands_on(tmp_path)
    with running_node(tmp_path):
        leveret("user", "add", "u", "--tag", "t", "--password-stdin", stdin="secret\n")
        leveret("permission", "set", "u", ".*", ".*", ".*")
    leveret("user", "set-tags", "u", "stopped")
    with running_node(tmp_path) as port:
        assert "stopped" in leveret("user", "list")
        with connected(port, "u", "secret") as connection:
            connection.channel().queue_declare("q")


@pytest.mark.covers("B-179")
def test_the_firehose_is_turned_on_and_off(leveret, port):
    with connected(port) as connection:
        channel = connection.channel()
        queue = channel.queue_declare("", exclusive=True).method.queue
        channel.queue_bind(queue, "amq.rabbitmq.trace", "publish.#")
        channel.confirm_delivery()
        leveret("trace", "on")
        channel.basic_publish("amq.fanout", "k", b"seen")
        leveret("trace", "off", "--vhost", "/")
        channel.basic_publish("amq.fanout", "k", b"not seen")
        found = [body for _, _, body in iter(lambda: channel.basic_get(queue), (None, None, None))]
    assert found == [b"seen"]


def test_what_the_command_line_does_is_an_event(leveret, port):
    with connected(port) as connection:
        channel = connection.channel()
        queue = channel.queue_declare("", exclusive=True).method.queue
        channel.queue_bind(queue, "amq.rabbitmq.event", "vhost.created")
        leveret("vhost", "add", "eventful")
        _, properties, _ = channel.basic_get(queue)
    assert properties.headers["name"] == "eventful"
    assert properties.headers["user_who_performed_action"] == "rmq-cli"


@pytest.mark.covers("B-180")
def test_the_log_is_published_where_it_is_wanted(tmp_path):
    file = tmp_path / "leveret.toml"
    file.write_text("log_exchange = true\nhandshake_timeout_seconds = 5\n")
    with (
        running_node(tmp_path / "data", "--config", str(file)) as port,
        connected(port) as connection,
    ):
        channel = connection.channel()
        queue = channel.queue_declare("", exclusive=True).method.queue
        channel.queue_bind(queue, "amq.rabbitmq.log", "warning")
        with socket.create_connection(("127.0.0.1", port)):  # and says nothing
            method, _, body = next(channel.consume(queue, inactivity_timeout=40))
    assert method.routing_key == "warning"
    assert b"did not finish its handshake in time" in body


def test_a_node_is_probed_frozen_and_stopped(tmp_path):
    def run(*arguments, status=0):
        command = [sys.executable, "-m", "leveret", *arguments, "--data-dir", tmp_path]
        result = subprocess.run(command, capture_output=True, text=True, check=False)
        assert result.returncode == status, result.stderr
        return result.stdout + result.stderr

    with running_node(tmp_path):
        assert run("health") == "ok\n"
        assert json.loads(run("health", "--json")) == {"status": "ok", "alarms": []}
        process = int((tmp_path / "lock").read_text())
        os.kill(process, signal.SIGSTOP)
        try:
            assert "did not answer within 0.3 s" in run("health", "--timeout", "0.3", status=1)
            told = run("queue", "list", "--timeout", "0.3", status=1)
            assert "did not answer within 0.3 s: it may be stopped or overloaded" in told
        finally:
            os.kill(process, signal.SIGCONT)
        assert run("node", "stop") == f"the node on {tmp_path} has stopped\n"
        assert "no node answers" in run("health", status=1)
        assert "no node is running" in run("node", "stop", status=1)
