"""One connection's share of a turn: time, not frames."""

import random

import pytest
from pamqp import commands

from tests.support.client import Client, message, wire
from tests.support.stage import Stage

FIRST = 100  # how many come in one read


@pytest.fixture
def stage():
    stage = Stage()
    yield stage
    assert stage.reported == []


@pytest.fixture
def client(stage):
    return Client(stage).open()


def read(client, *parts):
    """One read of the socket, and nothing of what follows it."""
    client.connection.received(memoryview(bytearray(b"".join(parts))))


def declares(count):
    return [wire(commands.Queue.Declare(queue=f"q{i}")) for i in range(count)]


def test_methods_are_worked_through_for_a_millisecond(stage, client):
    stage.look_ns = 300_000  # each method takes so long
    read(client, *declares(FIRST))
    assert len(stage.broker.vhosts["/"].queues) == 4
    assert client.link.deferred == 1
    stage.run()
    assert len(stage.broker.vhosts["/"].queues) == FIRST
    assert client.link.deferred == 24  # the last four were the end of it
    assert client.names() == ["Queue.DeclareOk"] * FIRST


def test_others_are_served_in_between(stage, client):
    other = Client(stage).open()
    stage.look_ns = 300_000
    read(client, *declares(FIRST))
    read(other, wire(commands.Queue.Declare(queue="other")))
    assert 4 < len(stage.broker.vhosts["/"].queues) < FIRST


def test_a_read_that_is_worked_through_in_time_is_not_put_off(stage, client):
    read(client, *declares(FIRST))
    assert len(stage.broker.vhosts["/"].queues) == FIRST
    assert client.link.deferred == 0


def test_publishes_with_ever_new_keys_end_with_the_time(stage, client):
    client.declare("q")
    client.call(commands.Queue.Bind(queue="q", exchange="amq.topic", routing_key="#"))
    client.call(commands.Confirm.Select())
    stage.look_ns = 300_000
    keys = [f"key{i}" for i in range(FIRST)]
    read(client, *(message(key, b"m", exchange="amq.topic") for key in keys))
    assert stage.queue("q").message_count < 10
    stage.run()
    assert stage.queue("q").message_count == FIRST
    answers = [method for _, method in client.received()]
    assert answers[-1].delivery_tag == FIRST
    # Known keys are no work: however many, they are one run, and have one confirm.
    read(client, *(message(key, b"m", exchange="amq.topic") for key in keys))
    assert stage.queue("q").message_count == 2 * FIRST


def test_acks_out_of_order_end_with_the_time(stage, client):
    count = 1000
    client.declare("q")
    client.publish("q", *[b"m"] * count)
    client.consume("q")
    client.received()
    tags = random.Random(1).sample(range(1, count + 1), count)
    stage.look_ns = 300_000
    read(client, *(wire(commands.Basic.Ack(tag)) for tag in tags))
    left = stage.queue("q").leased_count
    assert count // 2 < left < count
    stage.run()
    assert stage.queue("q").leased_count == 0


def test_errors_take_time_too(stage, client):
    opened = [wire(commands.Channel.Open(), number) for number in range(2, FIRST + 2)]
    client.feed(b"".join(opened))
    client.received()
    stage.look_ns = 300_000
    missing = commands.Queue.Declare(queue="missing", passive=True)
    read(client, *(wire(missing, number) for number in range(2, FIRST + 2)))
    assert client.link.deferred == 1
    stage.run()
    closed = [method.name for _, method in client.received()]
    assert closed == ["Channel.Close"] * FIRST


def test_what_was_put_off_ends_with_the_connection(stage, client):
    stage.look_ns = 300_000
    read(client, *declares(FIRST))
    client.link.lose()
    assert len(stage.broker.vhosts["/"].queues) == 4


def test_a_large_message_is_not_kept_behind_its_turn(client):
    client.call(commands.Tx.Select())
    client.publish("q", b"x" * 100_000)
    assert client.connection._event is None
