"""`leveret message publish` and `take`: what goes in comes out, as bytes."""

import subprocess
import sys

import pytest

from tests.support.command_line import CommandLine
from tests.support.waiting import wait_until


@pytest.fixture
def leveret(node):
    run = CommandLine(node.data_dir)
    run("queue", "declare", "q")
    yield run
    run("queue", "delete", "q")


def test_a_message_has_the_properties_that_were_stated(leveret, channel):
    told = leveret(
        *("message", "publish", "hello", "--queue", "q", "--header", "n=7", "--header", "s=text"),
        *("--property", "message_id=7", "--property", "priority=5"),
    )
    assert told == "1 message was published and confirmed\n"
    method, properties, body = channel.basic_get("q", auto_ack=True)
    assert (method.exchange, method.routing_key, body) == ("", "q", b"hello")
    assert properties.headers == {"n": 7, "s": "text"}
    assert (properties.message_id, properties.priority) == ("7", 5)
    assert properties.delivery_mode == 2


def test_any_bytes_come_from_standard_input_and_from_a_file(leveret, tmp_path):
    body = bytes(range(256))
    leveret("message", "publish", "--queue", "q", "--transient", stdin=body)
    (tmp_path / "body").write_bytes(body)
    leveret("message", "publish", "--queue", "q", "--file", str(tmp_path / "body"))
    taken = leveret.run("message", "take", "q", "--count", "5", "--payload")
    assert taken.stdout_bytes == (body + b"\n") * 2
    assert "cannot read" in leveret(
        "message", "publish", "--queue", "q", "--file", str(tmp_path / "none"), status=1
    )


def test_many_are_published_and_taken_for_good(leveret, channel):
    told = leveret.json("message", "publish", "m", "--queue", "q", "--count", "1500")
    assert told == {"published": 1500, "routed": 1500}
    assert channel.queue_declare("q", passive=True).method.message_count == 1500
    assert len(leveret.json("message", "take", "q", "--count", "1000")) == 1000
    assert channel.queue_declare("q", passive=True).method.message_count == 500


def test_what_is_requeued_stays(leveret):
    leveret("message", "publish", "m", "--queue", "q")
    leveret("message", "take", "q", "--requeue")
    assert "redelivered: true" in leveret("message", "take", "q")
    assert "no message that is ready" in leveret("message", "take", "q", status=1)


def test_an_unroutable_message_is_a_failure(leveret):
    to_nobody = ("message", "publish", "m", "--exchange", "amq.topic", "--routing-key", "k")
    assert "1 message could not be routed" in leveret(*to_nobody, status=1)
    leveret("binding", "declare", "amq.topic", "q", "--routing-key", "k")
    leveret(*to_nobody)


def test_what_cannot_be_is_refused(leveret):
    assert "no exchange 'none'" in leveret(
        "message", "publish", "m", "--exchange", "none", status=1
    )
    assert "no queue 'none'" in leveret("message", "take", "none", status=1)
    assert "either --queue or --exchange" in leveret("message", "publish", "m", status=2)
    assert "priority cannot be 'x'" in leveret(
        "message", "publish", "m", "--queue", "q", "--property", "priority=x", status=1
    )


def test_a_queue_that_is_full_refuses(leveret):
    full = ("--argument", "x-max-length=1", "--argument", "x-overflow=reject-publish")
    leveret("queue", "declare", "full", *full)
    told = leveret("message", "publish", "m", "--queue", "full", "--count", "3", status=1)
    assert "a queue has refused the message" in told
    leveret("queue", "delete", "full")


def test_what_a_queue_holds_is_shown_with_its_memory(leveret):
    leveret("message", "publish", "m", "--queue", "q", "--count", "3")
    row = leveret.json("queue", "show", "q")
    assert row["memory"] > 0
    assert row["message_stats"]["publish"] >= 3
    assert "\npublish: 3" in leveret("queue", "show", "q")


@pytest.mark.usefixtures("processes")  # those that publish and consume
@pytest.mark.smoke
def test_a_measurement_in_a_pipe_is_plain_text(node):
    uri = f"amqp://guest:guest@{node.addresses['amqp']}/"
    command = [sys.executable, "-m", "leveret", "perf", "--messages", "50", "--uri", uri]
    result = subprocess.run(command, capture_output=True, text=True, check=True)
    assert result.stdout.isascii() or "µ" in result.stdout
    lines = dict(line.split(": ", 1) for line in result.stdout.splitlines())
    assert "50 in all" in lines["consumed"]


def test_nothing_found_is_a_failure(leveret):
    leveret("message", "publish", "m", "--queue", "q")
    nothing = "no message matches"
    for command in (
        ("delete", "q"),
        ("move", "q", "--to-exchange", "amq.fanout"),
        ("copy", "q", "--to-exchange", "amq.fanout"),
    ):
        assert nothing in leveret("message", *command, "--message-id", "none", status=1)
    assert nothing in leveret("schedule", "cancel", "--exchange", "none", status=1)
    leveret("schedule", "cancel", "--all")
    assert "no such binding" in leveret("binding", "delete", "amq.fanout", "q", status=1)


def test_a_redrive_to_nowhere_is_a_failure(leveret, channel):
    channel.queue_declare("dead")
    routed = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"}
    channel.queue_declare("source", arguments=routed)
    channel.basic_publish("", "source", b"m")
    method, _, _ = channel.basic_get("source")
    channel.basic_reject(method.delivery_tag, requeue=False)
    wait_until(lambda: channel.queue_declare("dead", passive=True).method.message_count)
    channel.queue_delete("source")
    leveret("dlq", "redrive", "dead", status=1)
    told = leveret.json("dlq", "status", "dead")
    assert (told["moved"], told["unroutable"]) == (0, 1)
    assert "no message matches" in leveret("dlq", "delete", "dead", "--reason", "x", status=1)
    leveret("queue", "delete", "dead")
