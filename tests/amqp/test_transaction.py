from itertools import pairwise
from unittest.mock import ANY

import pytest
from pamqp import commands

from leveret.amqp import transaction
from leveret.core.alarms import Resource
from leveret.errors import StorageError
from leveret.ports import Durability
from leveret.ports.records import HEADER_BYTES
from leveret.ports.replication import BATCH_BYTES_MAX
from tests.support.client import Client, message, wire
from tests.support.stage import Stage


@pytest.fixture
def stage():
    stage = Stage()
    yield stage
    assert stage.reported == []


@pytest.fixture
def client(stage):
    client = Client(stage).open(1, 2)
    client.declare("q", channel=2)
    return client


def begin(client):
    assert client.call(commands.Tx.Select()).name == "Tx.SelectOk"


def commit(client):
    assert client.call(commands.Tx.Commit()).name == "Tx.CommitOk"


def rollback(client):
    assert client.call(commands.Tx.Rollback()).name == "Tx.RollbackOk"


def hold(client, *bodies):
    """Publish on another channel, and be delivered on the transactional one."""
    client.publish("q", *bodies, channel=2)
    client.consume("q")
    found = client.deliveries()
    assert [delivery.body for delivery in found] == list(bodies)


def leased(client):
    return client.stage.queue("q").state.leased_count


# -- publishes


@pytest.mark.covers("B-112")
def test_publishes_appear_with_the_commit(client):
    begin(client)
    client.publish("q", b"a", b"b")
    assert client.count("q", channel=2) == 0
    commit(client)
    assert client.count("q", channel=2) == 2


@pytest.mark.covers("B-112")
def test_publishes_are_gone_after_a_rollback(client):
    begin(client)
    client.publish("q", b"a")
    rollback(client)
    client.publish("q", b"b")
    commit(client)
    client.send(commands.Basic.Get(queue="q", no_ack=True), channel=2)
    assert [delivery.body for delivery in client.deliveries(2)] == [b"b"]
    assert client.count("q", channel=2) == 0


def test_a_transaction_begins_anew_after_each_commit(client):
    begin(client)
    for round_ in range(1, 4):
        client.publish("q", b"m")
        commit(client)
        assert client.count("q", channel=2) == round_


def test_publishing_and_committing_in_one_read(client):
    begin(client)
    client.feed(message("q", b"a") + wire(commands.Tx.Commit()) + message("q", b"b"))
    assert client.names() == ["Tx.CommitOk"]
    assert client.count("q", channel=2) == 1


def test_a_mandatory_message_comes_back_with_the_commit(client):
    begin(client)
    client.publish("nobody", b"m", mandatory=True)
    assert client.received() == []
    client.send(commands.Tx.Commit())
    assert client.methods() == [
        ("Basic.Return", 312, "NO_ROUTE"),
        ("header", 1),
        ("body", b"m"),
        ("Tx.CommitOk",),
    ]


def test_an_exchange_that_is_not_there_closes_the_channel_at_the_publish(client):
    begin(client)
    client.publish("", b"m", exchange="missing")
    text = "NOT_FOUND - no exchange 'missing' in vhost '/'"
    assert client.methods() == [("Channel.Close", 404, text, 60, 40)]


def test_messages_go_where_the_publish_was_routed(client):
    """RabbitMQ routes at the publish, too."""
    client.call(commands.Exchange.Declare(exchange="x", exchange_type="fanout"), 2)
    client.call(commands.Queue.Bind(queue="q", exchange="x"), 2)
    begin(client)
    client.publish("", b"m", exchange="x")
    client.call(commands.Exchange.Delete(exchange="x"), 2)
    commit(client)
    assert client.count("q", channel=2) == 1


def test_a_queue_deleted_before_the_commit_takes_nothing(client):
    begin(client)
    client.publish("q", b"a")
    client.publish("q", b"b", mandatory=True)
    client.call(commands.Queue.Delete(queue="q"), 2)
    client.send(commands.Tx.Commit())
    assert client.names() == ["Basic.Return", "Tx.CommitOk"]


def test_the_commit_waits_until_all_queues_are_safe():
    stage = Stage(Durability.FSYNC)
    client = Client(stage).open()
    client.declare("a", durable=True)
    client.declare("b", durable=True)
    begin(client)
    client.publish("a", b"m", delivery_mode=2)
    client.publish("b", b"m", delivery_mode=2)
    client.send(commands.Tx.Commit())
    stage.log("b").commit()
    assert client.received() == []
    stage.log("a").commit()
    assert client.names() == ["Tx.CommitOk"]


@pytest.mark.covers("B-112", "B-216")
@pytest.mark.parametrize("failing", ["a", "b"])
def test_a_commit_that_lost_a_part_is_refused(failing):
    stage = Stage(Durability.FSYNC)
    client = Client(stage).open()
    client.declare("a", durable=True)
    client.declare("b", durable=True)
    begin(client)
    client.publish("a", b"m", delivery_mode=2)
    client.publish("b", b"m", delivery_mode=2)
    stage.log(failing).append_error = StorageError("disk on fire")
    client.send(commands.Tx.Commit())
    for name in ("a", "b"):
        stage.log(name).commit()
    text = "PRECONDITION_FAILED - partial tx completion"
    assert client.methods() == [("Channel.Close", 406, text, 90, 20)]
    assert [str(error) for _, error in stage.reported] == ["disk on fire"]
    other = Client(stage).open()
    assert (other.count("a"), other.count("b")) == (0, 0)


@pytest.mark.parametrize("lacking", ["from", "to", "later"])
def test_a_commit_that_lacks_copies_delays_no_message(lacking):
    stage = Stage()
    client = Client(stage).open(1, 2)
    for name in ("from", "to", "later"):
        arguments = {"x-min-isr": 2} if name == lacking else {}
        client.declare(name, durable=True, channel=2, arguments=arguments)
    client.publish("from", b"m", channel=2)
    begin(client)
    client.consume("from")
    assert [delivery.body for delivery in client.deliveries()] == [b"m"]
    client.publish("q", b"later", headers={"x-delay": 5000})
    client.publish("later", b"later", headers={"x-delay": 5000})
    client.publish("to", b"m, transformed")
    client.send(commands.Basic.Ack(1))
    stage.topics.in_sync_count = 1
    client.send(commands.Tx.Commit())
    text = "PRECONDITION_FAILED - partial tx completion"
    assert client.methods() == [("Channel.Close", 406, text, 90, 20)]
    assert stage.broker.delayed.find("/") is None
    assert (client.count("from", channel=2), client.count("to", channel=2)) == (1, 0)
    assert stage.reported == []


@pytest.mark.covers("B-112", "B-216")
def test_a_commit_that_cannot_be_decided_leaves_nothing_and_gives_acks_back():
    stage = Stage()
    client = Client(stage).open(1, 2)
    for name in ("from", "to"):
        client.declare(name, durable=True, channel=2)
    client.publish("from", b"m", channel=2)
    begin(client)
    client.consume("from")
    assert [delivery.body for delivery in client.deliveries()] == [b"m"]
    client.publish("to", b"m, transformed")
    client.send(commands.Basic.Ack(1))
    stage.topics.decide_error = StorageError("disk on fire")
    client.send(commands.Tx.Commit())
    assert client.methods()[0][:2] == ("Channel.Close", 406)
    assert (client.count("from", channel=2), client.count("to", channel=2)) == (1, 0)
    client.publish("to", b"another", channel=2)
    client.send(commands.Basic.Get(queue="to"), channel=2)
    assert [delivery.body for delivery in client.deliveries(2)] == [b"another"]
    assert [str(error) for _, error in stage.reported] == ["disk on fire"]


@pytest.mark.covers("B-112")
def test_a_connection_that_is_lost_while_its_commit_waits_takes_its_acks_back_or_not():
    stage = Stage(Durability.FSYNC)
    other = Client(stage).open()
    for name in ("from", "to"):
        other.declare(name, durable=True)
    for outcome, left in ((None, 0), (StorageError("disk on fire"), 1)):
        other.publish("from", b"m", delivery_mode=2)
        stage.log("from").commit()
        stage.run()
        client = Client(stage).open()
        begin(client)
        client.consume("from")
        assert [delivery.body for delivery in client.deliveries()] == [b"m"]
        client.publish("to", b"m", delivery_mode=2)
        client.send(commands.Basic.Ack(1), commands.Tx.Commit())
        client.transport.lose()
        stage.topics.decide_error = outcome
        for name in ("from", "to"):
            stage.log(name).commit()
        stage.run()
        assert other.count("from") == left
        assert other.count("to") == 1
        assert stage.queue("from").leased_count == 0
    assert [str(error) for _, error in stage.reported] == ["disk on fire"]


@pytest.mark.covers("B-112", "B-216")
def test_a_commit_that_a_full_queue_refused_in_part_is_partial(client):
    full = {"x-max-length": 1, "x-overflow": "reject-publish"}
    client.declare("full", arguments=full)
    begin(client)
    client.publish("full", b"1")
    assert client.call(commands.Tx.Commit()).name == "Tx.CommitOk"
    client.publish("q", b"m")
    client.publish("full", b"2")
    client.send(commands.Tx.Commit())
    text = "PRECONDITION_FAILED - partial tx completion"
    assert client.methods() == [("Channel.Close", 406, text, 90, 20)]
    assert (client.count("q", channel=2), client.count("full", channel=2)) == (0, 1)


def test_a_partitioned_queue_may_be_deleted_while_a_commit_looks_for_room(stage, client):
    limits = {"x-partitions": 2, "x-max-length": 1000, "x-overflow": "reject-publish"}
    client.declare("p", durable=True, arguments=limits, channel=2)
    other = Client(stage).open()
    begin(client)
    client.publish("q", b"late", headers={"x-delay": 1000})
    client.publish("p", *[b"m"] * 200)
    stage.look_ns = 10**12  # each look at the clock ends the turn's share
    client.connection.received(memoryview(bytearray(wire(commands.Tx.Commit()))))
    for _ in range(3):
        stage.run_once()
    other.connection.received(memoryview(bytearray(wire(commands.Queue.Delete(queue="p")))))
    stage.run()
    assert client.names() == ["Tx.CommitOk"]


@pytest.mark.parametrize("refuses", [False, True])
def test_a_commit_to_many_queues_is_written_in_several_turns_and_decided_as_one(client, refuses):
    names = [f"q{number}" for number in range(2 * transaction.QUEUES_TOGETHER + 1)]
    client.call(commands.Exchange.Declare(exchange="e", exchange_type="fanout"), channel=2)
    for name in names:
        is_full = refuses and name == names[-1]
        limits = {"x-max-length": 1, "x-overflow": "reject-publish"} if is_full else {}
        client.declare(name, channel=2, arguments=limits)
        client.call(commands.Queue.Bind(queue=name, exchange="e"), channel=2)
    if refuses:
        client.publish(names[-1], b"full", channel=2)
    begin(client)
    logs, run_once = [client.stage.log(name) for name in names], client.stage.run_once
    written = [sum(log.end for log in logs)]

    def run_and_count():
        more = run_once()
        written.append(sum(log.end for log in logs))
        return more

    client.stage.run_once = run_and_count
    client.feed(message("", b"m", exchange="e") + wire(commands.Tx.Commit()))
    assert max(after - before for before, after in pairwise(written)) == transaction.QUEUES_TOGETHER
    client.methods()
    found = [client.count(name, channel=2) for name in names]
    assert found == ([0] * (len(names) - 1) + [1] if refuses else [1] * len(names))


def test_a_transaction_has_a_limit(client, monkeypatch):
    monkeypatch.setattr(transaction, "TRANSACTION_BYTES_MAX", 100)
    begin(client)
    client.publish("q", b"x" * 60)
    client.publish("q", b"x" * 60)
    text = "PRECONDITION_FAILED - a transaction holds at most 100 bytes; commit more often"
    assert client.methods() == [("Channel.Close", 406, text, 60, 40)]


def test_a_transaction_can_be_copied():
    assert transaction.TRANSACTION_BYTES_MAX + HEADER_BYTES <= BATCH_BYTES_MAX


def test_a_transaction_is_as_long_as_what_is_stored_of_it(client, monkeypatch):
    monkeypatch.setattr(transaction, "TRANSACTION_BYTES_MAX", 2000)
    begin(client)
    for _ in range(9):
        client.feed(message("k" * 200, b""))
    assert client.methods() == [("Channel.Close", 406, ANY, 60, 40)]


def test_a_commit_that_publishes_is_held_by_an_alarm_behind_it(stage):
    client = Client(stage).open(capabilities={"connection.blocked": True})
    client.declare("q")
    begin(client)
    stage.broker.alarms.set(Resource.DISK, low=True)
    commit(client)
    assert not client.transport.held
    client.publish("q", b"m")
    client.send(commands.Tx.Commit())
    assert client.transport.held
    assert set(client.names()) == {"Tx.CommitOk", "Connection.Blocked"}


# -- settlements


@pytest.mark.covers("B-112")
def test_acks_count_with_the_commit(client):
    begin(client)
    hold(client, b"a", b"b", b"c")
    client.send(commands.Basic.Ack(2, multiple=True))
    assert leased(client) == 3
    commit(client)
    assert leased(client) == 1


@pytest.mark.covers("B-112")
@pytest.mark.parametrize("multiple", [False, True])
def test_acks_count_not_after_a_rollback_and_can_be_given_again(client, multiple):
    begin(client)
    hold(client, b"a", b"b", b"c")
    client.send(commands.Basic.Ack(1), commands.Basic.Nack(2, requeue=False, multiple=multiple))
    rollback(client)
    assert leased(client) == 3
    assert client.received() == []  # nothing is redelivered by a rollback
    client.send(commands.Basic.Ack(3, multiple=True))
    commit(client)
    assert leased(client) == 0
    assert client.count("q", channel=2) == 0


def test_a_tag_is_settled_once_in_a_transaction(client):
    begin(client)
    hold(client, b"a")
    client.send(commands.Basic.Ack(1), commands.Basic.Ack(1))
    text = "PRECONDITION_FAILED - unknown delivery tag 1"
    assert client.methods() == [("Channel.Close", 406, text, 60, 80)]


def test_rejected_messages_come_back_with_the_commit(client):
    begin(client)
    hold(client, b"a", b"b")
    client.send(commands.Basic.Nack(1, requeue=True), commands.Basic.Reject(2, requeue=False))
    assert client.received() == []
    client.send(commands.Tx.Commit())
    assert client.names() == ["Tx.CommitOk", "Basic.Deliver"]
    assert leased(client) == 1


def test_prefetch_is_free_again_with_the_commit(client):
    begin(client)
    client.prefetch(1)
    client.publish("q", b"a", b"b", channel=2)
    client.consume("q")
    assert [delivery.body for delivery in client.deliveries()] == [b"a"]
    client.send(commands.Basic.Ack(1))
    assert client.received() == []
    client.send(commands.Tx.Commit())
    assert client.methods()[:2] == [("Tx.CommitOk",), ("Basic.Deliver", "c", 2)]


@pytest.mark.parametrize("end", ["close", "lose"])
def test_what_was_not_committed_goes_back_when_the_channel_ends(stage, client, end):
    other = Client(stage).open()
    begin(client)
    hold(client, b"a", b"b")
    client.send(commands.Basic.Ack(1), commands.Basic.Nack(2, requeue=False))
    client.publish("q", b"never")
    if end == "close":
        client.call(commands.Channel.Close(200, "", 0, 0))
    else:
        client.transport.lose()
    other.consume("q")
    found = other.deliveries()
    assert [(delivery.body, delivery.redelivered) for delivery in found] == [
        (b"a", True),
        (b"b", True),
    ]


# -- modes


@pytest.mark.covers("B-216")
def test_commit_without_select(client):
    client.send(commands.Tx.Commit())
    text = "PRECONDITION_FAILED - channel is not transactional"
    assert client.methods() == [("Channel.Close", 406, text, 90, 20)]


@pytest.mark.covers("B-216")
@pytest.mark.parametrize(
    ("first", "second", "text"),
    [
        (commands.Tx.Select(), commands.Confirm.Select(), "tx to confirm"),
        (commands.Confirm.Select(), commands.Tx.Select(), "confirm to tx"),
    ],
)
def test_a_channel_has_one_mode(client, first, second, text):
    client.call(first)
    client.send(second)
    (method,) = client.methods()
    assert method[:3] == (
        "Channel.Close",
        406,
        f"PRECONDITION_FAILED - cannot switch from {text} mode",
    )
