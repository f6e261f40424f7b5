"""A message that no queue took was not seen: whoever hears so may send it again."""

from __future__ import annotations

import time

import pika
import pika.exceptions
import pytest

from tests.harness.broker import BrokerProcess
from tests.harness.pika_client import await_count, drained
from tests.system.test_prepared import connected, decide

WINDOW = {"x-dedup-window": True}


@pytest.fixture
def broker(tmp_path, processes):
    with BrokerProcess(tmp_path / "data") as broker:
        yield broker


def send(channel, body=b"x", mandatory=True, exchange="x", **properties):
    """Return what became of a message: stored, returned or nacked."""
    properties = pika.BasicProperties(delivery_mode=2, **properties)
    try:
        channel.basic_publish(exchange, "k", body, properties, mandatory=mandatory)
    except pika.exceptions.UnroutableError:
        return "returned"
    except pika.exceptions.NackError:
        return "nacked"
    return "confirmed"


def bound(channel, queue="q", exchange="x"):
    channel.queue_declare(queue, durable=True)
    channel.queue_bind(queue, exchange, "k")


@pytest.mark.covers("C-207")
@pytest.mark.parametrize("mandatory", [False, True])
def test_an_exchange_does_not_remember_what_no_queue_took(broker, mandatory):
    connection, channel = connected(broker)
    channel.exchange_declare("x", "direct", durable=True, arguments=WINDOW)
    told = "returned" if mandatory else "confirmed"
    assert [send(channel, mandatory=mandatory, message_id="u") for _ in range(2)] == [told] * 2
    bound(channel)
    for body in (b"first", b"again"):
        assert send(channel, body, mandatory=mandatory, message_id="u") == "confirmed"
    assert drained(channel, "q") == ["first"]
    connection.close()


def test_what_the_alternate_exchange_took_was_seen(broker):
    connection, channel = connected(broker)
    channel.exchange_declare("other", "fanout")
    channel.exchange_declare("x", arguments={**WINDOW, "alternate-exchange": "other"})
    bound(channel, "caught", "other")
    for body in (b"first", b"again"):
        assert send(channel, body, message_id="u") == "confirmed"
    assert drained(channel, "caught") == ["first"]
    connection.close()


@pytest.mark.covers("C-208")
def test_a_number_that_was_returned_is_expected_again(broker):
    def number(sequence, **options):
        headers = {"x-producer-id": "p", "x-producer-epoch": 0, "x-producer-seq": sequence}
        return send(channel, b"%d" % sequence, headers=headers, **options)

    connection, channel = connected(broker)
    channel.exchange_declare("x", "direct", durable=True)
    assert number(0, mandatory=False) == "confirmed"  # nobody wanted to know
    assert [number(1), number(2), number(1)] == ["returned", "nacked", "returned"]
    bound(channel)
    assert [number(2), number(1), number(1), number(2)] == ["nacked"] + ["confirmed"] * 3
    assert drained(channel, "q") == ["1", "2"]
    connection.close()


def test_a_delayed_message_that_no_queue_took_may_come_again(broker):
    connection, channel = connected(broker)
    channel.exchange_declare("x", "direct", durable=True, arguments=WINDOW)
    send(channel, mandatory=False, message_id="u", headers={"x-delay": 50})
    time.sleep(0.5)
    bound(channel)
    for body in (b"first", b"again"):
        assert send(channel, body, message_id="u", headers={"x-delay": 50}) == "confirmed"
    await_count(channel, "q", 1)
    time.sleep(0.2)
    assert drained(channel, "q") == ["first"]
    connection.close()


@pytest.mark.parametrize("decision", ["rollback", "commit"])
def test_a_half_message_that_no_queue_got_may_come_again(broker, decision):
    connection, channel = connected(broker)
    channel.exchange_declare("x", "direct", durable=True, arguments=WINDOW)
    half = {"x-prepare": True}
    send(channel, mandatory=False, message_id="h", headers=half)
    assert decide(channel, decision, "h") in {"rolled back", "committed"}
    bound(channel)
    for body in (b"first", b"again"):
        assert send(channel, body, message_id="h", headers=half) == "confirmed"
    assert decide(channel, "commit", "h") == "committed"
    assert send(channel, b"again", message_id="h", headers=half) == "confirmed"
    assert decide(channel, "commit", "h") == "unknown"
    assert drained(channel, "q") == ["first"]
    connection.close()
