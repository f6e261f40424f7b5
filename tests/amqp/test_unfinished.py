"""The limit of all half-sent messages together, and that nobody is stuck behind it."""

import pytest
from pamqp import commands

from leveret.amqp.unfinished import NOTED_BYTES_MIN
from leveret.core.alarms import Resource
from tests.support.client import Client, message
from tests.support.stage import Stage

MIB = 1024 * 1024
SIZE = 400_000


@pytest.fixture
def stage():
    stage = Stage(node_unfinished_bytes_max=MIB)
    yield stage
    assert stage.reported == []


def half(client, size=SIZE, channel=1):
    """Send all of a message but its end. Returns the rest."""
    data = message("q", b"x" * size, channel)
    client.feed(data[:-1000])
    return data[-1000:]


def held(clients):
    return [client.transport.held for client in clients]


def test_one_at_a_time_goes_on_while_too_much_is_unfinished(stage):
    clients = [Client(stage).open() for _ in range(4)]
    clients[0].declare("q")
    rests = [half(client) for client in clients]
    assert stage.unfinished.total > MIB
    assert held(clients) == [
        False,
        False,
        True,
        True,
    ]  # who was read before is held when it is again
    clients[0].feed(rests[0])
    assert stage.queue("q").message_count == 1
    assert held(clients[1:]) == [False, True, True]
    clients[1].feed(rests[1])
    assert held(clients) == [False] * 4
    for client, rest in zip(clients[2:], rests[2:], strict=True):
        client.feed(rest)
    assert stage.queue("q").message_count == 4
    assert stage.unfinished.total == 0


def test_clients_are_told(stage):
    clients = [Client(stage).open(capabilities={"connection.blocked": True}) for _ in range(4)]
    for client in clients:
        half(client)
    assert clients[3].names() == ["Connection.Blocked"]
    clients[0].transport.lose()
    clients[1].transport.lose()
    assert clients[3].names() == ["Connection.Unblocked"]


def test_whoever_holds_most_is_closed_when_nobody_finishes(stage):
    small = [Client(stage).open() for _ in range(3)]
    large = Client(stage).open()
    for client in small:
        half(client, 200_000)
    rest = half(large, 900_000)
    assert large.transport.held
    stage.advance(1.9)
    assert large.names() == []
    stage.advance(0.2)
    closed = large.methods(0)
    assert [(name, code) for name, code, *_ in closed] == [("Connection.Close", 506)]
    assert "unfinished messages of more than 1048576 bytes on this node" in closed[0][2]
    assert stage.unfinished.total < MIB
    assert held(small) == [False] * 3
    large.feed(rest)
    assert large.names() == []


def test_nobody_is_closed_while_something_is_finished(stage):
    clients = [Client(stage).open() for _ in range(6)]
    clients[0].declare("q")
    rests = [half(client) for client in clients]
    for client, rest in zip(clients, rests, strict=True):
        stage.advance(1.5)
        client.feed(rest)
    assert stage.queue("q").message_count == 6


def test_nobody_is_closed_while_an_alarm_keeps_them_from_finishing(stage):
    clients = [Client(stage).open() for _ in range(4)]
    for client in clients:
        half(client)
    stage.broker.alarms.set(Resource.MEMORY, low=True)
    assert held(clients) == [True] * 4
    stage.advance(60)
    assert all(client.names() == [] for client in clients)
    stage.broker.alarms.set(Resource.MEMORY, low=False)
    assert not held(clients)[0]
    stage.advance(5)
    assert any("Connection.Close" in client.names() for client in clients)


def test_who_begins_to_publish_is_held_by_an_alarm(stage):
    client = Client(stage).open()
    stage.broker.alarms.set(Resource.MEMORY, low=True)
    assert not client.transport.held
    half(client)
    assert client.transport.held
    stage.broker.alarms.set(Resource.MEMORY, low=False)
    assert not client.transport.held


def test_who_has_begun_to_publish_is_held_by_an_alarm(stage):
    client, other = Client(stage).open(), Client(stage).open()
    half(client)
    stage.broker.alarms.set(Resource.MEMORY, low=True)
    assert held([client, other]) == [True, False]


def test_transactions_count(stage):
    client, other = Client(stage).open(), Client(stage).open()
    client.declare("q")
    client.call(commands.Tx.Select())
    client.publish("q", b"x" * 700_000)
    assert stage.unfinished.total >= 700_000
    half(other)
    assert other.transport.held
    assert client.call(commands.Tx.Commit()).name == "Tx.CommitOk"
    assert not other.transport.held
    assert stage.unfinished.total < MIB // 2
    client.publish("q", b"x" * 700_000)
    client.call(commands.Tx.Rollback())
    client.publish("q", b"x" * 700_000)
    client.call(commands.Channel.Close(200, "", 0, 0))
    other.transport.lose()
    assert stage.unfinished.total == 0


def test_a_channel_that_is_closed_keeps_nothing(stage):
    client = Client(stage).open(1, 2)
    half(client)
    client.send(commands.Queue.Declare(queue="missing", passive=True), channel=2)
    assert stage.unfinished.total > NOTED_BYTES_MIN
    client.feed(message("q", b"x" * 10, 2)[:20])  # strays on a closed channel
    client.send(commands.Channel.CloseOk(), channel=2)
    client.transport.lose()
    assert stage.unfinished.total == 0


def test_small_rests_of_a_read_are_not_noted(stage):
    client = Client(stage).open()
    half(client, NOTED_BYTES_MIN // 2)
    assert stage.unfinished.total == 0
