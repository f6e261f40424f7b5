from datetime import UTC, datetime

import pytest
from pamqp import commands

from leveret.core.topology.predeclared import TRACE_EXCHANGE
from tests.support.client import Client, message
from tests.support.messages import heard, listen
from tests.support.stage import Stage

NAME = "127.0.0.1:50000 -> 127.0.0.1:5672"


@pytest.fixture
def stage():
    stage = Stage()
    yield stage
    assert stage.reported == []


@pytest.fixture
def client(stage):
    client = Client(stage).open()
    client.declare("q")
    listen(stage, TRACE_EXCHANGE)
    stage.broker.trace("/", on=True)
    return client


@pytest.mark.covers("B-179")
def test_a_publish_is_copied_with_all_that_is_known_of_it(stage, client):
    client.publish(
        "q",
        b"hello",
        headers={"a": 1, "CC": ["other"]},
        delivery_mode=2,
        priority=3,
        content_type="text/plain",
        message_id="m",
    )
    [copy] = heard(stage)
    assert (copy.exchange, copy.key, copy.body) == (TRACE_EXCHANGE, "publish.", b"hello")
    assert copy.properties.delivery_mode is None
    properties = copy.headers.pop("properties")
    assert copy.headers == {
        "exchange_name": "",
        "routing_keys": ["q", "other"],
        "node": "leveret@test",
        "vhost": "/",
        "connection": NAME,
        "channel": 1,
        "user": "guest",
        "routed_queues": ["q"],
        "properties": {
            "headers": {"a": 1, "CC": ["other"]},
            "delivery_mode": 2,
            "priority": 3,
            "content_type": "text/plain",
            "message_id": "m",
        },
    }
    assert properties["delivery_mode"] == 2
    assert client.count("q") == 1


@pytest.mark.covers("B-179")
def test_deliveries_and_gets_are_copied(stage, client):
    client.publish("q", b"one", b"two")
    heard(stage)
    client.send(commands.Basic.Get(queue="q"))
    client.received()
    client.consume("q")
    client.received()
    copies = heard(stage)
    assert [(copy.key, copy.body, copy.headers["redelivered"]) for copy in copies] == [
        ("deliver.q", b"one", 0),
        ("deliver.q", b"two", 0),
    ]
    assert copies[0].headers == {
        "exchange_name": "",
        "routing_keys": ["q"],
        "properties": {},
        "node": "leveret@test",
        "redelivered": 0,
        "vhost": "/",
        "connection": NAME,
        "channel": 1,
        "user": "guest",
    }
    client.send(commands.Basic.Nack(delivery_tag=0, multiple=True, requeue=True))
    client.received()
    assert [copy.headers["redelivered"] for copy in heard(stage)] == [1, 1]


def test_what_nobody_takes_is_copied_too(stage, client):
    client.publish("missing", b"lost")
    client.publish("missing", b"back", mandatory=True)
    assert [(copy.body, copy.headers["routed_queues"]) for copy in heard(stage)] == [
        (b"lost", []),
        (b"back", []),
    ]


def test_in_a_transaction_what_is_published_counts(stage, client):
    client.call(commands.Tx.Select())
    client.publish("q", b"x")
    assert [copy.body for copy in heard(stage)] == [b"x"]
    client.call(commands.Tx.Rollback())
    assert heard(stage) == []
    stage.broker.trace("/", on=False)
    client.publish("q", b"y")
    client.call(commands.Tx.Rollback())
    assert client.count("q") == 0


def test_copies_are_not_copied(stage, client):
    client.consume("listener", "l", no_ack=True)
    client.publish("q", b"x")
    client.received()
    stage.run()
    assert stage.queue("listener").message_count == 0
    client.send(commands.Basic.Cancel(consumer_tag="l"))
    client.received()
    assert heard(stage) == []


@pytest.mark.covers("B-179")
def test_it_is_on_and_off_for_channels_that_are_open_and_for_new_ones(stage, client):
    client.open_channel(2)
    client.publish("q", b"x", channel=2)
    other = Client(stage).open()
    other.publish("q", b"y")
    assert [copy.headers["channel"] for copy in heard(stage)] == [2, 1]
    stage.broker.trace("/", on=False)
    for each, channel in ((client, 1), (client, 2), (other, 1)):
        each.publish("q", b"z", channel=channel)
        assert not each.connection.channels.by_number[channel].slot.one_by_one
    client.send(commands.Basic.Get(queue="q"))
    assert heard(stage) == []
    assert other.count("q") == 4


def test_confirms_and_prefetch_are_as_without_it(stage, client):
    client.call(commands.Confirm.Select())
    client.prefetch(2)
    client.consume("q")
    client.publish("q", *(b"%d" % number for number in range(5)))
    names = client.names()
    assert names.count("Basic.Deliver") == 2
    assert "Basic.Ack" in names


def test_headers_that_nobody_can_read_close_nothing(stage, client):
    data = message("q", b"x", headers={"a": "value"})
    broken = data.replace(b"\x01aS", b"\x01a?")
    assert broken != data
    client.feed(broken)
    [copy] = heard(stage)
    assert (copy.body, copy.headers["properties"]) == (b"x", {})
    assert client.count("q") == 1


def test_a_name_too_long_for_a_key_is_cut(stage, client):
    name = "n" * 255
    client.declare(name)
    client.publish(name, b"x")
    heard(stage)
    client.send(commands.Basic.Get(queue=name))
    [copy] = heard(stage)
    assert copy.key == f"deliver.{name}"[:255]


def test_large_integers_are_told(stage, client):
    client.publish("q", b"x", timestamp=datetime(2100, 1, 1, tzinfo=UTC))
    [copy] = heard(stage)
    assert copy.headers["properties"] == {"timestamp": 4102444800}
