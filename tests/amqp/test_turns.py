"""One connection's share of a turn: time, not frames."""

import asyncio
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pamqp import commands

from leveret.amqp import destinations
from leveret.amqp.destinations import COPY_BYTES_MIN
from leveret.amqp.frames import COPIED_BYTES_MAX
from leveret.core.queues.consumer import CONSUMERS_A_TURN
from leveret.core.turn import MADE_TOGETHER_MAX, PARKED_NS_MAX
from leveret.errors import (
    ChannelError,
    ConnectionClosingError,
    NotEnoughCopiesError,
    StorageError,
)
from leveret.features.delay.delayed_messages import DELAYED_TOPIC
from leveret.node.core import _come_to_rest
from tests.support.client import Client, message, wire
from tests.support.examples import examples
from tests.support.stage import Stage

FIRST = 100  # how many come in one read
MANY = MADE_TOGETHER_MAX + 6


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
    assert len(stage.broker.vhosts["/"].queues) == 5  # the first before the clock runs
    assert client.transport.deferred == 1
    stage.run()
    assert len(stage.broker.vhosts["/"].queues) == FIRST
    assert client.transport.deferred == 19  # the last five were the end of it
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
    assert client.transport.deferred == 0


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
    assert client.transport.deferred == 1
    stage.run()
    closed = [method.name for _, method in client.received()]
    assert closed == ["Channel.Close"] * FIRST


def test_what_was_put_off_ends_with_the_connection(stage, client):
    stage.look_ns = 300_000
    read(client, *declares(FIRST))
    client.transport.lose()
    assert len(stage.broker.vhosts["/"].queues) == 5


def test_exclusive_queues_end_with_the_time(stage, client):
    exclusive = [commands.Queue.Declare(queue=f"q{i}", exclusive=True) for i in range(FIRST)]
    client.feed(b"".join(map(wire, exclusive)))
    stage.look_ns = 300_000  # each that goes takes so long
    client.connection.lost()
    assert FIRST // 2 < len(stage.broker.vhosts["/"].queues) < FIRST
    stage.run()
    assert not stage.broker.vhosts["/"].queues


def test_a_large_message_is_not_kept_behind_its_turn(client):
    client.call(commands.Tx.Select())
    client.publish("q", b"x" * 100_000)
    assert client.connection._event is None


# -- what is long by itself


HOLES = 2000


def holding_holes(stage, client, queue="q"):
    """A client that holds every second of many messages."""
    client.declare(queue)
    client.publish(queue, *[b"m"] * (2 * HOLES))
    client.consume(queue)
    client.received()
    client.send(*(commands.Basic.Ack(tag) for tag in range(1, 2 * HOLES, 2)))
    assert stage.queue(queue).leased_count == HOLES
    stage.look_ns = 300_000  # each slice takes so long


@pytest.mark.parametrize(
    ("method", "ready"),
    [
        (commands.Basic.Ack(0, multiple=True), 0),
        (commands.Basic.Nack(0, multiple=True, requeue=False), 0),
        (commands.Basic.Ack(2 * HOLES, multiple=True), 0),
    ],
)
def test_many_holes_are_settled_in_slices(stage, client, method, ready):
    holding_holes(stage, client)
    read(client, wire(method), *declares(1))
    assert 0 < stage.queue("q").leased_count < HOLES
    assert client.connection.is_waiting
    assert "q0" not in stage.broker.vhosts["/"].queues  # nothing overtakes it
    stage.run()
    assert stage.queue("q").leased_count == 0
    assert stage.queue("q").message_count == ready
    assert client.names() == ["Queue.DeclareOk"]


def test_many_holes_are_discarded_in_their_order(stage, client):
    client.declare("dead")
    arguments = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"}
    client.declare("q", arguments=arguments)
    bodies = [b"%d" % i for i in range(HOLES)]
    client.publish("q", *bodies)
    client.consume("q")
    client.received()
    client.send(*(commands.Basic.Ack(tag) for tag in range(1, HOLES, 2)))
    stage.look_ns = 300_000
    client.send(commands.Basic.Nack(0, multiple=True, requeue=False))
    stage.look_ns = 0
    client.consume("dead", "d", no_ack=True)
    assert [one.body for one in client.deliveries()] == bodies[1::2]


def test_recovery_is_answered_when_all_is_back(stage, client):
    holding_holes(stage, client)
    client.send(commands.Basic.Cancel("c"))
    client.received()
    read(client, wire(commands.Basic.Recover(requeue=True)))
    assert 0 < stage.queue("q").message_count < HOLES
    assert client.transport.sent == b""
    stage.run()
    assert client.names() == ["Basic.RecoverOk"]
    assert stage.queue("q").message_count == HOLES


def test_a_channel_is_closed_when_all_is_back(stage, client):
    holding_holes(stage, client)
    read(client, wire(commands.Channel.Close(200, "", 0, 0)))
    assert 0 < stage.queue("q").message_count < HOLES
    read(client, wire(commands.Channel.Open()))
    stage.run()
    assert client.names() == ["Channel.CloseOk", "Channel.OpenOk"]
    assert stage.queue("q").message_count == HOLES


def test_a_channel_that_ends_in_slices_has_nothing_to_confirm(stage, client):
    client.declare("consumed")
    for number in range(FIRST):
        client.consume("consumed", f"c{number}")
    client.declare("q")
    client.call(commands.Confirm.Select())
    client.received()
    stage.look_ns = 1_200_000  # each slice takes so long
    read(client, message("q", b"m"), message("", b"m", exchange="missing"))
    assert client.connection.is_waiting
    stage.run()
    assert client.names() == ["Channel.Close"]
    assert stage.queue("q").message_count == 1


def test_a_lost_connection_gives_back_in_slices(stage, client):
    holding_holes(stage, client)
    client.declare("mine", exclusive=True)
    client.transport.closed = True
    client.connection.lost()
    assert 0 < stage.queue("q").message_count < HOLES
    stage.run()
    assert stage.queue("q").message_count == HOLES
    assert "mine" not in stage.broker.vhosts["/"].queues
    assert stage.broker.connections == set()


def test_close_ok_says_that_all_is_back(stage, client):
    holding_holes(stage, client)
    read(client, wire(commands.Connection.Close(200, "", 0, 0), 0))
    assert not client.transport.closed
    stage.run()
    assert client.transport.closed
    assert client.names() == ["Connection.CloseOk"]
    assert stage.queue("q").message_count == HOLES


def test_many_consumers_end_in_slices(stage, client):
    client.declare("q", auto_delete=True)
    consumers = [commands.Basic.Consume(queue="q", consumer_tag=f"c{i}") for i in range(200)]
    client.send(*consumers)
    client.received()
    stage.look_ns = 300_000
    read(client, wire(commands.Channel.Close(200, "", 0, 0)))
    assert 100 < stage.queue("q").consumer_count < 200
    stage.run()
    assert "q" not in stage.broker.vhosts["/"].queues
    assert client.names() == ["Channel.CloseOk"]


def test_a_connection_that_is_shut_while_it_gives_back_ends_once(stage, client):
    holding_holes(stage, client)
    read(client, wire(commands.Channel.Close(200, "", 0, 0)))
    client.connection.shut(ConnectionClosingError(320, "user 'guest' is deleted"))
    stage.run()
    assert stage.queue("q").message_count == HOLES
    assert client.names() == ["Connection.Close", "Channel.CloseOk"]
    client.send(commands.Connection.CloseOk(), channel=0)
    assert client.transport.closed


def test_consumers_of_a_deleted_queue_are_told_by_and_by(stage, client):
    count = 3 * CONSUMERS_A_TURN
    client = Client(stage).open(capabilities={"consumer_cancel_notify": True})
    other = Client(stage).open()
    client.declare("q")
    consumers = [commands.Basic.Consume(queue="q", consumer_tag=f"c{i}") for i in range(count)]
    client.send(*consumers)
    client.received()
    read(other, wire(commands.Queue.Delete(queue="q")))
    channel = client.connection.channels.by_number[1]
    assert len(channel.consumers) == count - CONSUMERS_A_TURN
    read(client, wire(commands.Basic.Cancel(f"c{count - 1}")))
    cancelled = client.methods()
    assert ("Basic.CancelOk", f"c{count - 1}") in cancelled
    told = [tag for name, tag in cancelled if name == "Basic.Cancel"]
    assert told == [f"c{i}" for i in range(count - 1)]
    assert channel.consumers == {}


def fan_out(stage, client):
    """Bind many queues to amq.fanout; a turn then flushes one of those that are parked."""
    for number in range(MANY):
        client.declare(f"q{number}")
        client.call(commands.Queue.Bind(queue=f"q{number}", exchange="amq.fanout"))
    client.call(commands.Confirm.Select())
    client.received()
    stage.look_ns = PARKED_NS_MAX + 1
    stage.turn.clock_ns = stage.monotonic_ns


def to_all(body):
    return message("", body, exchange="amq.fanout")


def counts(stage):
    return [stage.log(f"q{number}").end for number in range(MANY)]


def bodies(stage, name):
    return [record[6] for batch in stage.log(name).read(0, 1 << 20) for record in batch.records()]


def test_who_publishes_to_many_queues_waits_for_them_and_goes_on(stage, client):
    fan_out(stage, client)
    read(client, to_all(b"first"), to_all(b"second"), wire(commands.Queue.Declare(queue="later")))
    stage.run_once()
    assert 0 < sum(counts(stage)) < 10
    assert client.connection.is_waiting
    assert not client.transport.sent
    stage.run()
    assert not client.connection.is_waiting
    assert counts(stage) == [2] * MANY
    assert sorted(client.names()) == ["Basic.Ack", "Queue.DeclareOk"]


def test_others_are_confirmed_in_the_turn_meanwhile(stage, client):
    fan_out(stage, client)
    other = Client(stage).open()
    other.declare("other")
    other.call(commands.Confirm.Select())
    other.received()
    read(client, to_all(b"m"))
    read(other, message("other", b"m"), message(f"q{MANY - 1}", b"behind"))
    stage.run_once()
    assert not other.connection.is_waiting
    assert other.transport.sent
    assert bodies(stage, f"q{MANY - 1}") == [b"m", b"behind"]
    assert client.connection.is_waiting
    assert other.names() == ["Basic.Ack"]


def test_who_packs_into_many_parked_queues_waits_too(stage, client):
    fan_out(stage, client)
    other = Client(stage).open()
    read(client, to_all(b"m"))
    read(other, to_all(b"n"))
    stage.run_once()
    assert other.connection.is_waiting
    stage.run()
    assert counts(stage) == [2] * MANY
    assert not other.connection.is_waiting


def test_a_message_off_the_fast_path_parks_too(stage, client):
    fan_out(stage, client)
    read(client, message("", b"m", exchange="amq.fanout", headers={"CC": ["a"]}))
    stage.run_once()
    assert client.connection.is_waiting
    stage.run()
    assert counts(stage) == [1] * MANY
    assert client.names() == ["Basic.Ack"]


def test_what_is_parked_is_stored_although_its_connection_is_lost(stage, client):
    fan_out(stage, client)
    read(client, to_all(b"m"))
    stage.run_once()
    client.transport.lose()
    assert counts(stage) == [1] * MANY


def test_nobody_waits_for_a_deleted_queue(stage, client):
    fan_out(stage, client)
    other = Client(stage).open()
    read(client, to_all(b"m"))
    stage.run_once()
    for number in range(MANY):
        read(other, wire(commands.Queue.Delete(queue=f"q{number}")))
    stage.run()
    assert client.names() == ["Basic.Ack"]
    assert not client.connection.is_waiting
    assert not stage.turn.parked


def test_a_get_from_a_parked_queue_finds_the_message(stage, client):
    fan_out(stage, client)
    other = Client(stage).open()
    read(client, to_all(b"m"))
    read(other, wire(commands.Basic.Get(queue=f"q{MANY - 1}", no_ack=True)))
    stage.run_once()
    assert client.connection.is_waiting
    assert other.transport.sent
    assert other.names() == ["Basic.GetOk"]


def test_what_is_parked_is_stored_when_the_node_stops(stage, client):
    fan_out(stage, client)
    read(client, to_all(b"m"))
    asyncio.run(_come_to_rest(stage.broker))
    assert counts(stage) == [1] * MANY
    stage.run()
    assert client.names() == ["Basic.Ack"]


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["all", "one", "get", "pass"]), st.integers(0, 2), st.integers(0, 2)
        ),
        max_size=30,
    )
)
@settings(max_examples=examples(25))
def test_parking_keeps_the_order_and_all_confirms(steps):
    stage = Stage()
    clients = [Client(stage).open() for _ in range(3)]
    fan_out(stage, clients[0])
    for client in clients[1:]:
        client.call(commands.Confirm.Select())
    names = ["q0", "q40", f"q{MANY - 1}"]
    expected: dict[tuple[str, int], list[bytes]] = {}
    published = [0, 0, 0]
    for number, (step, who, queue) in enumerate(steps):
        client, body = clients[who], b"%d %d" % (who, number)
        if step == "pass":
            stage.run_once()
        elif client.connection.is_waiting:
            continue  # it is not read
        elif step == "get":
            read(client, wire(commands.Basic.Get(queue=names[queue])))
        else:
            published[who] += 1
            read(client, to_all(body) if step == "all" else message(names[queue], body))
            for name in names if step == "all" else [names[queue]]:
                expected.setdefault((name, who), []).append(body)
    stage.run()
    for name in names:
        for who in range(3):
            own = [body for body in bodies(stage, name) if body.startswith(b"%d " % who)]
            assert own == expected.get((name, who), [])
    for client, count in zip(clients, published, strict=True):
        acks = [m for _, m in client.received() if m.name == "Basic.Ack"]
        assert (acks[-1].delivery_tag if acks else 0) == count
        assert not client.connection.is_waiting
    assert not stage.turn.parked
    assert stage.reported == []


# -- names that were another's


BINDINGS = 1000


@pytest.fixture
def bound(stage, client):
    """A queue with many bindings to an exchange; chores, too, take their time."""
    client.declare("q")
    client.call(commands.Exchange.Declare(exchange="x", exchange_type="topic"))
    client.send(
        *(
            commands.Queue.Bind(queue="q", exchange="x", routing_key=f"key.{number}")
            for number in range(BINDINGS)
        )
    )
    client.received()
    stage.look_ns = 300_000
    stage.turn.clock_ns = stage.monotonic_ns
    return client


DELETIONS = [
    (
        commands.Queue.Delete(queue="q"),
        commands.Queue.Declare(queue="q"),
        ["Queue.DeleteOk", "Queue.DeclareOk"],
    ),
    (
        commands.Exchange.Delete(exchange="x"),
        commands.Exchange.Declare(exchange="x", exchange_type="direct"),
        ["Exchange.DeleteOk", "Exchange.DeclareOk"],
    ),
]


@pytest.mark.parametrize(("delete", "declare", "answers"), DELETIONS)
def test_a_name_is_declared_anew_when_the_bindings_of_the_old_are_gone(
    stage, bound, delete, declare, answers
):
    topology = stage.broker.vhosts["/"].topology
    read(bound, wire(delete), wire(declare), *declares(1))
    assert bound.connection.is_waiting
    assert len(topology._apart) == 1
    assert "q0" not in topology.queues
    stage.run()
    assert topology._apart == {}
    assert bound.names() == [*answers, "Queue.DeclareOk"]
    assert {"q", "q0"} <= topology.queues.keys()
    assert not topology.exchanges["x"].outgoing


@pytest.mark.parametrize(("delete", "declare", "answers"), DELETIONS)
def test_a_name_is_not_declared_by_a_connection_that_ends_meanwhile(
    stage, bound, delete, declare, answers
):
    read(bound, wire(delete), wire(declare))
    bound.connection.shut(ConnectionClosingError(320, "user 'guest' is deleted"))
    stage.run()
    assert bound.names() == [answers[0], "Connection.Close"]
    vhost = stage.broker.vhosts["/"]
    assert ("q" in vhost.queues) != ("x" in vhost.exchanges)


# -- transactions


COUNT = 2000  # publishes, or settlements, of one transaction


def between_turns(client, look):
    """Return what `look` sees whenever others are let in."""
    seen, others = [], client.transport.others

    def looking():
        seen.append(look())
        return others()

    client.transport.others = looking
    return seen


@pytest.fixture
def begun(stage, client):
    """A transaction of many publishes; what comes next takes its time."""
    client.declare("q")
    client.call(commands.Tx.Select())
    client.publish("q", *[b"m"] * COUNT)
    stage.look_ns = 300_000  # each slice takes so long
    return client


def test_a_commit_is_gathered_in_slices(stage, begun):
    seen = between_turns(begun, lambda: begun.connection._transaction_bytes)
    read(begun, wire(commands.Tx.Commit()), message("q", b"next"), *declares(1))
    assert begun.connection.is_waiting
    assert not stage.broker.atomic.is_busy
    assert "q0" not in stage.broker.vhosts["/"].queues  # nothing overtakes it
    stage.run()
    assert len(seen) > 10
    assert stage.queue("q").message_count == COUNT
    assert begun.names() == ["Tx.CommitOk", "Queue.DeclareOk"]
    begun.send(commands.Tx.Commit())
    assert stage.queue("q").message_count == COUNT + 1


def test_a_commit_fails_if_a_delayed_message_is_lost_while_it_is_gathered(stage, client):
    client.declare("q")
    delayed = message("q", b"later", headers={"x-delay": 60_000})
    client.feed(delayed)
    client.call(commands.Tx.Select())
    client.feed(delayed)
    client.publish("q", *[b"m"] * COUNT)
    stage.look_ns = 300_000  # each slice takes so long
    log = stage.log(DELAYED_TOPIC)
    log.append_error = StorageError("full")
    read(client, wire(commands.Tx.Commit()))
    while not stage.reported:
        stage.run_once()
    log.append_error = None  # the disk has room again
    stage.run()
    assert log.end == 1
    assert client.methods() == [
        ("Channel.Close", 406, "PRECONDITION_FAILED - partial tx completion", 90, 20)
    ]
    assert stage.queue("q").message_count == 0
    assert len(stage.reported) == 1
    stage.reported.clear()


def test_what_a_commit_returns_is_told_in_slices(stage, client):
    client.call(commands.Tx.Select())
    client.publish("nobody", *[b"m"] * COUNT, mandatory=True)
    stage.look_ns = 300_000
    read(client, wire(commands.Tx.Commit()))
    told = between_turns(client, lambda: len(client.transport.sent) + client.connection.outbox.size)
    stage.run()
    assert any(0 < size < len(client.transport.sent) // 2 for size in told)
    assert client.names() == ["Basic.Return"] * COUNT + ["Tx.CommitOk"]


def test_a_rollback_forgets_in_slices(stage, begun):
    read(begun, wire(commands.Tx.Rollback()), *declares(1))
    assert begun.connection.is_waiting
    assert begun.connection._transaction_bytes > 0
    stage.run()
    assert begun.connection._transaction_bytes == 0
    assert begun.names() == ["Tx.RollbackOk", "Queue.DeclareOk"]
    begun.send(commands.Tx.Commit())
    assert stage.queue("q").message_count == 0


@pytest.mark.parametrize("ends", ["shut", "lose"])
def test_a_connection_that_ends_while_a_commit_is_gathered_commits_nothing(stage, client, ends):
    client.declare("from")
    client.publish("from", *[b"m"] * COUNT)
    client.consume("from")
    client.received()
    client.call(commands.Tx.Select())
    client.publish("to", *[b"m"] * COUNT)
    client.send(*(commands.Basic.Ack(tag) for tag in range(1, COUNT, 2)))
    other = Client(stage).open()
    other.declare("to")
    stage.look_ns = 300_000
    read(client, wire(commands.Tx.Commit()))
    assert not stage.broker.atomic.is_busy
    if ends == "shut":
        client.connection.shut(ConnectionClosingError(320, "user 'guest' is deleted"))
        stage.run()
        assert client.names() == ["Connection.Close"]
    else:
        client.transport.lose()
    assert stage.queue("to").message_count == 0
    assert stage.queue("from").message_count == COUNT
    assert stage.queue("from").leased_count == 0
    assert client.connection._transaction_bytes == 0


def test_a_channel_that_ends_while_a_commit_is_gathered_ends_behind_it(stage, begun):
    read(begun, wire(commands.Tx.Commit()))
    begun.connection.channels.close(1, ChannelError(406, "held a delivery for too long"))
    stage.run()
    assert begun.names() == ["Channel.Close"]
    assert stage.queue("q").message_count == COUNT


def test_a_queue_that_goes_while_a_commit_is_gathered_takes_nothing(stage, begun):
    other = Client(stage).open()
    other.declare("other")
    stage.look_ns = 0
    begun.publish("other", b"last")
    stage.look_ns = 300_000
    read(begun, wire(commands.Tx.Commit()))
    read(other, wire(commands.Queue.Delete(queue="q")))
    assert not stage.broker.atomic.is_busy
    stage.run()
    assert begun.names() == ["Tx.CommitOk"]
    assert stage.queue("other").message_count == 1


@pytest.mark.parametrize("outcome", ["commit", "rollback", "failure", "close"])
def test_many_settlements_of_a_transaction_are_gone_through_in_slices(stage, client, outcome):
    holding_holes(stage, client)
    stage.look_ns = 0
    client.call(commands.Tx.Select())
    stage.look_ns = 300_000
    read(client, wire(commands.Basic.Nack(0, multiple=True, requeue=False)), *declares(1))
    channel = client.connection.channels.by_number[1]
    assert 0 < channel.unacked.count < HOLES
    assert "q0" not in stage.broker.vhosts["/"].queues
    stage.run()
    assert channel.unacked.count == 0
    assert stage.queue("q").leased_count == HOLES
    client.received()
    if outcome == "commit":
        read(client, wire(commands.Tx.Commit()))
        stage.run()
        assert client.names() == ["Tx.CommitOk"]
        assert stage.queue("q").leased_count == stage.queue("q").message_count == 0
    elif outcome == "rollback":
        read(client, wire(commands.Tx.Rollback()))
        assert 0 < channel.unacked.count < HOLES
        stage.run()
        assert client.names() == ["Tx.RollbackOk"]
        assert channel.unacked.count == stage.queue("q").leased_count == HOLES
    elif outcome == "failure":
        full = {"x-max-length": 1, "x-overflow": "reject-publish"}
        client.call(commands.Queue.Declare(queue="full", arguments=full), 1)
        client.publish("full", b"1", b"2")
        read(client, wire(commands.Tx.Commit()))
        stage.run()
        assert client.names() == ["Channel.Close"]
        assert stage.queue("q").message_count == HOLES
    else:
        read(client, wire(commands.Channel.Close(200, "", 0, 0)))
        stage.run()
        assert client.names() == ["Channel.CloseOk"]
        assert stage.queue("q").message_count == HOLES


BIG = b"x" * (COPIED_BYTES_MAX // MANY + 1)


@pytest.mark.parametrize("options", [{}, {"headers": {"CC": ["a"]}}])
def test_copies_that_take_many_bytes_are_made_in_portions(stage, client, options):
    fan_out(stage, client)
    stage.turn.clock_ns = lambda: 0
    stage.look_ns = 600_000  # each portion takes so long
    read(client, message("", BIG, exchange="amq.fanout", **options), to_all(b"next"))
    stage.run_once()
    assert 0 < sum(counts(stage)) < MANY
    assert not client.transport.sent
    other = Client(stage).open()
    other.declare("other")
    other.publish("other", b"m")
    assert other.count("other") == 1
    stage.run()
    for number in range(MANY):
        assert bodies(stage, f"q{number}") == [BIG, b"next"]
    assert client.methods() == [("Basic.Ack", 2, True)]


def test_small_copies_count_as_the_pages_they_take(stage, client, monkeypatch):
    monkeypatch.setattr(destinations, "COPIED_TOGETHER_BYTES", MANY * COPY_BYTES_MIN - 1)
    fan_out(stage, client)
    stage.turn.clock_ns = lambda: 0
    stage.look_ns = 1_200_000
    read(client, message("", b"m", exchange="amq.fanout", headers={"CC": ["a"]}))
    stage.run_once()
    assert 0 < sum(counts(stage)) < MANY
    stage.run()
    assert counts(stage) == [1] * MANY


def test_copies_go_on_without_their_connection(stage, client):
    fan_out(stage, client)
    stage.turn.clock_ns = lambda: 0
    stage.look_ns = 600_000
    read(client, to_all(BIG))
    stage.run_once()
    client.transport.lose()
    stage.run()
    assert counts(stage) == [1] * MANY


@pytest.mark.parametrize("error", [StorageError("full"), NotEnoughCopiesError("few")])
@pytest.mark.parametrize("name", ["q0", f"q{MANY - 1}"])
def test_a_copy_that_is_not_stored_is_a_nack_whatever_its_portion(stage, client, name, error):
    fan_out(stage, client)
    stage.log(name).append_error = error
    stage.turn.clock_ns = lambda: 0
    stage.look_ns = 600_000
    read(client, to_all(BIG))
    while not stage.reported:
        stage.run_once()
    stage.log(name).append_error = None  # the disk has room again, or the copies are back
    stage.run()
    assert sum(counts(stage)) == MANY - 1
    assert client.names() == ["Basic.Nack"]
    assert [reported for _, reported in stage.reported] == [error]
    stage.reported.clear()


def test_what_came_before_copies_in_portions_is_nacked_if_it_is_not_stored(stage, client):
    fan_out(stage, client)
    client.open_channel(2)
    client.declare("other")
    client.call(commands.Confirm.Select(), channel=2)
    client.received()
    stage.log("other").append_error = StorageError("full")
    read(client, message("other", b"m", 2), to_all(BIG))
    stage.run()
    answers = {channel: answer.name for channel, answer in client.received()}
    assert answers == {1: "Basic.Ack", 2: "Basic.Nack"}
    assert len(stage.reported) == 1
    stage.reported.clear()


def test_a_queue_that_goes_meanwhile_gets_no_copy(stage, client):
    fan_out(stage, client)
    stage.turn.clock_ns = lambda: 0
    stage.look_ns = 600_000
    other = Client(stage).open()
    read(client, to_all(BIG))
    stage.run_once()
    last = f"q{MANY - 1}"
    assert stage.log(last).end == 0
    other.call(commands.Queue.Delete(queue=last))
    stage.run()
    assert client.names() == ["Basic.Ack"]
