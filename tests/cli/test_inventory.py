"""The commands on what there is on a running node."""

import time

import pika.exceptions
import pytest

from leveret.cli.completion import queue_names, vhost_names
from leveret.cli.output import iso
from tests.support.command_line import CommandLine
from tests.support.node import node_in_thread


@pytest.fixture
def leveret(node):
    return CommandLine(node.data_dir)


def test_a_queue_is_declared_shown_purged_and_deleted(leveret, channel):
    argument = ("--argument", "x-max-length=5", "--argument", "x-overflow=reject-publish")
    assert (
        leveret("queue", "declare", "q", "--type", "quorum", *argument) == "queue 'q' is declared\n"
    )
    channel.basic_publish("", "q", b"m")
    assert leveret("queue", "list").splitlines() == [
        "vhost  name  type    messages_ready  messages_unacknowledged  consumers",
        "/      q     quorum  1               0                        0",
    ]
    assert leveret.json("queue", "show", "q")["arguments"] == {
        "x-max-length": 5,
        "x-overflow": "reject-publish",
        "x-queue-type": "quorum",
    }
    assert "inequivalent arg" in leveret("queue", "declare", "q", status=1)
    assert "not empty" in leveret("queue", "delete", "q", "--if-empty", status=1)
    assert leveret("queue", "purge", "q") == "1 message was deleted\n"
    assert leveret("queue", "purge", "q", "--waiting") == "0 messages were deleted\n"
    assert leveret("queue", "delete", "q") == "0 messages were deleted with queue 'q'\n"
    assert "no queue 'q'" in leveret("queue", "delete", "q", status=1)


def test_any_queue_can_be_deleted(leveret, channel):
    name = channel.queue_declare("", exclusive=True).method.queue
    channel.basic_publish("", name, b"m")
    channel.basic_consume(name, lambda *_: None)
    leveret("queue", "delete", name)
    assert leveret.json("queue", "list", "--name", name) == []


def test_a_list_by_a_column(leveret, channel):
    for count, name in enumerate(("one", "two", "three")):
        leveret("queue", "declare", name)
        for _ in range(count):
            channel.basic_publish("", name, b"m")
    rows = leveret("queue", "list", "--sort", "messages", "--reverse", "--columns", "name,messages")
    assert [line.split() for line in rows.splitlines()] == [
        ["name", "messages"],
        ["three", "2"],
        ["two", "1"],
        ["one", "0"],
    ]
    first = leveret("queue", "list", "--limit", "1", "--columns", "name", "--json")
    assert first == '[{"name": "one"}]\n1 of 3 shown; --limit 0 shows all\n'
    assert "no column 'foo'" in leveret("queue", "list", "--sort", "foo", "--limit", "1", status=2)
    assert "it is at least 0" in leveret("queue", "list", "--limit", "-1", status=2)
    assert "it is a whole number" in leveret("queue", "list", "--limit", "x", status=2)
    for name in ("one", "two", "three"):
        leveret("queue", "delete", name)


def test_a_queue_is_changed_while_it_is_used(leveret, channel):
    leveret("queue", "declare", "q", "--argument", "x-max-length=5")
    assert leveret("queue", "pause", "q") == "queue 'q' is paused\n"
    channel.basic_publish("", "q", b"m")
    assert channel.basic_get("q")[0] is None
    assert leveret("queue", "resume", "q") == "queue 'q' is resumed\n"
    assert channel.basic_get("q", auto_ack=True)[2] == b"m"
    change = ("--argument", "x-max-length=null", "--argument", "x-message-ttl=60000")
    assert leveret("queue", "change", "q", *change) == "queue 'q' was changed\n"
    assert leveret.json("queue", "show", "q")["arguments"]["x-message-ttl"] == 60_000
    assert leveret("queue", "rename", "q", "r") == "queue 'q' was renamed to 'r'\n"
    channel.queue_declare("q", passive=True)
    assert leveret("queue", "remove-alias", "q") == "alias 'q' was removed\n"
    leveret("queue", "delete", "r")


def test_a_queue_with_an_argument_without_effect_is_declared_with_a_warning(leveret):
    argument = ("--argument", "x-queue-mode=lazy", "--argument", "x-max-length=5")
    assert leveret("queue", "declare", "lazy", *argument) == (
        "queue 'lazy' is declared\nargument x-queue-mode of queues has no effect: queues keep "
        "messages in their logs on disk, memory is a bounded cache\n"
    )
    leveret("queue", "delete", "lazy")


def test_exchanges_and_bindings(leveret):
    leveret("queue", "declare", "q")
    assert leveret("exchange", "declare", "x", "--type", "headers") == "exchange 'x' is declared\n"
    leveret("exchange", "declare", "y", "--transient", "--internal", "--auto-delete")
    assert leveret.json("exchange", "show", "y")["internal"] is True
    matching = ("--argument", "x-match=any", "--argument", "shop=7")
    assert leveret("binding", "declare", "x", "q", *matching) == "'q' is bound to exchange 'x'\n"
    leveret("binding", "declare", "x", "y", "--to-exchange")
    rows = leveret.json("binding", "list", "--source", "x")
    assert [(row["destination_type"], row["arguments"]) for row in rows] == [
        ("exchange", {}),
        ("queue", {"x-match": "any", "shop": 7}),
    ]
    assert "in use" in leveret("exchange", "delete", "x", "--if-unused", status=1)
    leveret("binding", "delete", "x", "q", *matching)
    leveret("binding", "delete", "x", "y", "--to-exchange")
    assert "no such binding" in leveret("binding", "delete", "x", "q", *matching, status=1)
    assert leveret.json("binding", "list", "--source", "x") == []
    assert leveret("exchange", "delete", "x") == "exchange 'x' was deleted\n"
    leveret("queue", "delete", "q")


def test_connections_show_the_name_that_their_client_gave(leveret, node):
    with node.connected(client_properties={"connection_name": "shop-7"}):
        shown_name = leveret("connection", "list", "--columns", "client_name", "--sort", "name")
        assert shown_name.split() == ["client_name", "shop-7"]
        assert "shop-7" in leveret("connection", "list")


def test_a_connection_shows_times_for_people_and_numbers_for_programs(leveret, node):
    before = time.time() * 1000
    with node.connected():
        (row,) = leveret.json("connection", "list")
        connected_ms = leveret.json("connection", "show", row["name"])["connected_at"]
        assert before <= connected_ms <= time.time() * 1000
        lines = leveret("connection", "show", row["name"]).splitlines()
        assert f"connected_at: {iso(connected_ms)}" in lines
        assert str(connected_ms) not in "\n".join(lines)


def test_connections_are_closed_with_a_reason(leveret, node):
    connection = node.connected()
    (row,) = leveret.json("connection", "list", "--user", "guest")
    assert leveret.json("connection", "show", row["name"]) == row
    assert "1 connection was closed" in leveret(
        "connection", "close", row["name"], "--reason", "go home"
    )
    with pytest.raises(pika.exceptions.ConnectionClosedByBroker, match="go home"):
        connection.process_data_events(5)
    assert "0 connections were closed" in leveret("connection", "close", "--vhost", "/")
    assert "no connection" in leveret("connection", "close", row["name"], status=1)
    assert "state either" in leveret("connection", "close", status=1)


def test_channels_and_consumers(leveret, channel):
    channel.queue_declare("q")
    channel.basic_publish("", "q", b"m")
    channel.basic_qos(prefetch_count=7)
    tag = channel.basic_consume("q", lambda *_: None)
    (row,) = leveret.json("consumer", "list", "--queue", "q")
    assert (row["consumer_tag"], row["prefetch_count"]) == (tag, 7)
    assert "vhost  queue  consumer_tag" in leveret("consumer", "list")
    line = leveret("consumer", "list", "--sort", "channel", "--columns", "queue,channel")
    assert line.split()[:3] == ["queue", "channel", "q"]
    (row,) = leveret.json("channel", "list", "--user", "guest")
    assert (row["confirm"], row["messages_unconfirmed"]) == (True, 0)
    assert row["messages_unacknowledged"] == 1
    leveret("queue", "delete", "q")


def test_the_node_and_its_alarms(leveret):
    status = leveret.json("node", "status")
    assert {each["protocol"] for each in status["listeners"]} >= {"amqp"}
    assert status["queues"] == 0
    assert status["memory_bytes"] < status["memory_bytes_max"]
    assert "alarms: none" in leveret("node", "status")
    assert leveret("alarms") == "no alarms\n"


def test_the_cluster_has_a_name(leveret):
    before = leveret("node", "name").strip()
    assert before
    assert leveret("node", "name", "orders") == "the cluster was renamed to 'orders'\n"
    assert leveret("node", "name") == "orders\n"
    assert leveret.json("node", "name") == {"name": "orders"}
    assert leveret.json("node", "status")["cluster_name"] == "orders"
    leveret("node", "name", before)


def test_a_stopped_node_is_named(tmp_path):
    leveret = CommandLine(tmp_path)
    assert "no name was given" in leveret("node", "name")
    leveret("node", "name", "orders")
    assert leveret("node", "name") == "orders\n"


def test_an_alarm_is_the_commands_status(tmp_path):
    leveret = CommandLine(tmp_path)
    with node_in_thread(tmp_path, disk_free_bytes_min=1 << 60):
        assert leveret.run("alarms", status=1).stdout == "low on disk: publishers are blocked\n"
    assert "no node is running" in leveret.run("alarms", status=3).stderr


def test_a_stopped_node_has_none(tmp_path):
    result = CommandLine(tmp_path).run("queue", "list", status=1)
    assert "no node is running on" in result.stderr


class Context:
    """Stands for the shell's completion: the words before."""

    def __init__(self, **params):
        self.params = params


def test_the_shell_completes_names(leveret, node):
    leveret("queue", "declare", "orders")
    leveret("queue", "declare", "old-orders")
    assert queue_names(Context(data_dir=node.data_dir), "or") == ["orders"]
    assert queue_names(Context(data_dir=node.data_dir, vhost="no"), "or") == []
    assert vhost_names(Context(data_dir=str(node.data_dir)), "") == ["/"]
    leveret("queue", "delete", "orders")
    leveret("queue", "delete", "old-orders")


def test_without_a_node_nothing_is_completed(tmp_path):
    assert queue_names(Context(data_dir=tmp_path), "") == []
    assert vhost_names(Context(data_dir=tmp_path), "") == []
