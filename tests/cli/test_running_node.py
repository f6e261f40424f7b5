"""Administration of a node that runs, as its clients see it."""

import json
import os
import signal
import socket
import subprocess
import sys

import pika.exceptions
import pytest

from tests.process import running_node
from tests.support.command_line import CommandLine
from tests.support.node import node_in_thread
from tests.support.waiting import LIMIT_SECONDS


@pytest.fixture
def leveret(node):
    """Tests leave the node as it was: each has users and vhosts of its own."""
    return CommandLine(node.data_dir)


def assert_login_refused(node, user, password):
    with (
        pytest.raises(pika.exceptions.ProbableAuthenticationError, match=r"\(403\)"),
        node.connected(user, password),
    ):
        pass


def test_new_user_enters_after_being_permitted(node, leveret):
    leveret("user", "add", "u", "--password-stdin", stdin="secret\n")
    with (
        pytest.raises(
            pika.exceptions.ProbableAccessDeniedError,
            match="access to vhost '/' refused for user 'u'",
        ),
        node.connected("u", "secret"),
    ):
        pass
    leveret("permission", "set", "u", "^own-", "", "")
    with node.connected("u", "secret") as connection:
        connection.channel().queue_declare("own-queue")
        with pytest.raises(
            pika.exceptions.ChannelClosedByBroker,
            match="configure access to queue 'queue' in vhost '/' refused for user 'u'",
        ):
            connection.channel().queue_declare("queue")


def test_withdrawn_permission_is_felt_on_an_open_connection(node, leveret):
    leveret("user", "add", "writer", "--password-stdin", stdin="secret\n")
    leveret("permission", "set", "writer", ".*", ".*", ".*")
    with node.connected("writer", "secret") as connection:
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


def test_wrong_old_and_deleted_passwords_are_refused(node, leveret):
    leveret("user", "add", "known", "--password-stdin", stdin="old\n")
    leveret("permission", "set", "known", ".*", ".*", ".*")
    with node.connected("known", "old"):
        pass
    assert_login_refused(node, "known", "wrong")
    assert_login_refused(node, "nobody", "old")
    leveret("user", "set-password", "known", "--password-stdin", stdin="new\n")
    assert_login_refused(node, "known", "old")
    with node.connected("known", "new"):
        pass
    leveret("user", "delete", "known", "--yes")
    assert_login_refused(node, "known", "new")


def test_vhost_comes_and_goes(node, leveret):
    leveret("vhost", "add", "v")
    leveret("permission", "set", "guest", ".*", ".*", ".*", "--vhost", "v")
    with node.connected(vhost="v") as connection:
        connection.channel().queue_declare("q", durable=True)
    leveret("vhost", "delete", "v")
    with (
        pytest.raises(pika.exceptions.ProbableAccessDeniedError, match="vhost v not found"),
        node.connected(vhost="v"),
    ):
        pass


def test_what_was_administered_survives_the_node(tmp_path):
    leveret = CommandLine(tmp_path)
    with node_in_thread(tmp_path):
        leveret("user", "add", "u", "--tag", "t", "--password-stdin", stdin="secret\n")
        leveret("permission", "set", "u", ".*", ".*", ".*")
    leveret("user", "set-tags", "u", "stopped")
    with node_in_thread(tmp_path) as node:
        assert "stopped" in leveret("user", "list")
        with node.connected("u", "secret") as connection:
            connection.channel().queue_declare("q")


@pytest.mark.covers("B-179")
def test_the_firehose_is_turned_on_and_off(leveret, node):
    with node.connected() as connection:
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


def test_what_the_command_line_does_is_an_event(leveret, node):
    with node.connected() as connection:
        channel = connection.channel()
        queue = channel.queue_declare("", exclusive=True).method.queue
        channel.queue_bind(queue, "amq.rabbitmq.event", "vhost.created")
        leveret("vhost", "add", "eventful")
        _, properties, _ = channel.basic_get(queue)
    assert properties.headers["name"] == "eventful"
    assert properties.headers["user_who_performed_action"] == "rmq-cli"


@pytest.mark.covers("B-180")
def test_the_log_is_published_where_it_is_wanted(tmp_path):
    with (
        node_in_thread(tmp_path, log_exchange=True, handshake_timeout_seconds=0.5) as node,
        node.connected(connection_attempts=100) as connection,  # its own handshake may be slow, too
    ):
        channel = connection.channel()
        queue = channel.queue_declare("", exclusive=True).method.queue
        channel.queue_bind(queue, "amq.rabbitmq.log", "warning")
        with socket.create_connection(("127.0.0.1", node.port)):  # and says nothing
            method, _, body = next(channel.consume(queue, inactivity_timeout=LIMIT_SECONDS))
    assert method.routing_key == "warning"
    assert b"did not finish its handshake in time" in body


@pytest.mark.usefixtures("processes")  # one that stands still, and ends
@pytest.mark.smoke
def test_a_node_is_probed_frozen_and_stopped(tmp_path):
    def run(*arguments, status=0):
        command = [sys.executable, "-m", "leveret", *arguments, "--data-dir", tmp_path]
        result = subprocess.run(command, capture_output=True, text=True, check=False)
        assert result.returncode == status, result.stderr
        return result.stdout + result.stderr

    with running_node(tmp_path):
        assert run("health") == "ok\n"
        assert json.loads(run("health", "--json")) == {"status": "ok", "alarms": []}
        assert "of no cluster" in run("health", "--in-sync", status=1)
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
