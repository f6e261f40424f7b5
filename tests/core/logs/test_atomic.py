"""Atomic writes over queues of a stage: admission, order, and what others see meanwhile."""

from dataclasses import replace
from types import SimpleNamespace

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from pamqp import commands

from leveret.errors import NotEnoughCopiesError, StorageError
from leveret.features.dedup.extension import QueueWindows
from leveret.ports import Durability
from tests.support import memory_log
from tests.support.client import Client, message
from tests.support.examples import examples
from tests.support.queue_bench import content_header
from tests.support.stage import Stage


class Outcome:
    def __init__(self):
        self.failed = None

    def done(self, *, failed):
        assert self.failed is None
        self.failed = failed


@pytest.fixture(params=[Durability.OS, Durability.FSYNC])
def stage(request):
    return Stage(request.param)


@pytest.fixture
def client(stage):
    return Client(stage).open()


def flushed(stage):
    """Let all logs flush, and whoever waits for that go on."""
    stage.run()
    for log in stage.topics.logs.values():
        log.commit()
    stage.run()


def declare(client, *names, **arguments):
    for name in names:
        client.declare(name, durable=True, arguments=arguments)


def publish(client, queue, *bodies, **properties):
    client.publish(queue, *bodies, delivery_mode=2, **properties)
    flushed(client.stage)


def header_of(body):
    return bytes.fromhex("003c0000") + len(body).to_bytes(8, "big") + bytes(2)


def put(stage, write, queue, body):
    write.publish(stage.queue(queue), 1, b"", queue.encode(), header_of(body), body)


def commit(stage, write):
    outcome = Outcome()
    write.commit(outcome)
    assert outcome.failed is None, "not before commit returns"
    flushed(stage)
    return outcome.failed


def lease(stage, queue):
    offset, _ = stage.queue(queue).get()
    return [(offset, offset + 1)]


def test_a_message_moves_from_queue_to_queue(stage, client):
    declare(client, "a", "b")
    publish(client, "a", b"m")
    write = stage.broker.atomic.begin()
    put(stage, write, "b", b"m")
    write.settle(stage.queue("a"), lease(stage, "a"))
    assert commit(stage, write) is False
    assert (client.count("a"), client.count("b")) == (0, 1)
    assert stage.queue("a").leased_count == 0
    assert len(stage.topics.decided) == 1


@pytest.mark.parametrize("failing", ["a", "b"])
def test_a_write_that_cannot_be_stored_changes_nothing(stage, client, failing):
    declare(client, "a", "b")
    publish(client, "a", b"m")
    write = stage.broker.atomic.begin()
    put(stage, write, "b", b"m")
    ranges = lease(stage, "a")
    write.settle(stage.queue("a"), ranges)
    stage.log(failing).append_error = StorageError("disk on fire")
    assert commit(stage, write) is True
    stage.log(failing).append_error = None
    assert client.count("b") == 0
    assert stage.queue("a").leased_count == 1
    stage.queue("a").return_(ranges)
    publish(client, "b", b"later")
    assert (client.count("a"), client.count("b")) == (1, 1)
    client.consume("b")
    assert [delivery.body for delivery in client.deliveries()] == [b"later"]
    assert [str(error) for _, error in stage.reported] == ["disk on fire"]


def test_a_flush_that_fails_undoes_the_write_everywhere():
    stage = Stage(Durability.FSYNC)
    client = Client(stage).open()
    declare(client, "a", "b")
    write, outcome = stage.broker.atomic.begin(), Outcome()
    put(stage, write, "a", b"m")
    put(stage, write, "b", b"m")
    write.commit(outcome)
    stage.run()
    stage.log("a").commit()
    stage.log("b").fail(StorageError("disk on fire"))
    stage.run()
    assert outcome.failed
    publish(client, "a", b"later")
    assert (client.count("a"), client.count("b")) == (1, 0)
    assert stage.queue("a").state.ready_count == 1


def test_what_others_have_published_before_goes_before(stage, client):
    declare(client, "a")
    write = stage.broker.atomic.begin()
    put(stage, write, "a", b"second")
    stage.queue("a").builder.add(1, stage.now, b"", b"a", header_of(b"first"), b"first")
    assert commit(stage, write) is False
    client.consume("a")
    assert [delivery.body for delivery in client.deliveries()] == [b"first", b"second"]


def test_a_queue_without_room_refuses_the_whole_write(stage, client):
    declare(client, "a")
    declare(client, "full", **{"x-max-length": 2, "x-overflow": "reject-publish"})
    publish(client, "full", b"1")
    write = stage.broker.atomic.begin()
    for queue in ("a", "full", "full"):
        put(stage, write, queue, b"m")
    assert commit(stage, write) is True
    assert (client.count("a"), client.count("full")) == (0, 1)
    write = stage.broker.atomic.begin()
    for queue in ("a", "full"):
        put(stage, write, queue, b"m")
    assert commit(stage, write) is False
    assert (client.count("a"), client.count("full")) == (1, 2)
    assert stage.reported == []


def test_a_queue_that_is_deleted_meanwhile_is_left_out(stage, client):
    declare(client, "a", "b")
    write = stage.broker.atomic.begin()
    put(stage, write, "a", b"m")
    put(stage, write, "b", b"m")
    stage.broker.delete_queue(stage.broker.vhosts["/"], stage.queue("b"))
    assert commit(stage, write) is False
    assert client.count("a") == 1


def test_a_queue_that_is_deleted_while_the_write_is_prepared():
    stage = Stage(Durability.FSYNC)
    client = Client(stage).open()
    declare(client, "a", "b")
    write, outcome = stage.broker.atomic.begin(), Outcome()
    put(stage, write, "a", b"m")
    put(stage, write, "b", b"m")
    write.commit(outcome)
    stage.run()
    stage.broker.delete_queue(stage.broker.vhosts["/"], stage.queue("b"))
    flushed(stage)
    assert outcome.failed is False
    assert client.count("a") == 1


def test_nothing_that_was_undone_is_delivered_dropped_or_counted(stage, client):
    declare(client, "a", **{"x-max-length-bytes": 100, "x-max-priority": 3})
    declare(client, "b")
    publish(client, "a", b"x" * 30, priority=2)
    write = stage.broker.atomic.begin()
    put(stage, write, "a", b"y" * 60)
    put(stage, write, "b", b"y")
    stage.topics.decide_error = StorageError("disk on fire")
    assert commit(stage, write) is True
    publish(client, "a", b"z" * 60)
    assert client.count("a") == 2
    client.consume("a")
    assert [delivery.body[:1] for delivery in client.deliveries()] == [b"x", b"z"]


def test_an_empty_write_commits(stage):
    assert commit(stage, stage.broker.atomic.begin()) is False


def test_writes_of_one_turn_are_decided_together(stage, client, monkeypatch):
    declare(client, "a", "b")
    decisions = []
    decide = stage.topics.decide
    monkeypatch.setattr(
        stage.topics, "decide", lambda each, done: (decisions.append(len(each)), decide(each, done))
    )
    outcomes = []
    for _ in range(3):
        write = stage.broker.atomic.begin()
        put(stage, write, "a", b"m")
        put(stage, write, "b", b"m")
        outcomes.append(Outcome())
        write.commit(outcomes[-1])
    flushed(stage)
    assert decisions == [3]
    assert [outcome.failed for outcome in outcomes] == [False] * 3
    assert client.count("a") == 3


def test_a_stream_takes_records_and_keeps_what_is_settled(stage, client):
    declare(client, "s", **{"x-queue-type": "stream"})
    declare(client, "a")
    publish(client, "s", b"m")
    write = stage.broker.atomic.begin()
    write.settle(stage.queue("s"), [(0, 1)])
    put(stage, write, "a", b"m")
    put(stage, write, "s", b"n")
    assert commit(stage, write) is False
    assert (client.count("s"), client.count("a")) == (2, 1)


# -- queues with a window of de-duplication


def give_windows(stage):
    """Let queues that are declared from now on have windows."""
    services = SimpleNamespace(
        state=stage.state,
        spawn=stage.spawn,
        timers=stage.broker.timers,
        report=stage.report,
        feature_counters=stage.broker.feature_counters,
    )
    present = stage.broker._opener.services
    kinds = [kind for kind in present.extensions if not isinstance(kind, QueueWindows)]
    kinds.append(QueueWindows(services, 1000))
    stage.broker._opener.services = replace(present, extensions=tuple(kinds))


def with_id(client, queue, *ids):
    for name in ids:
        client.publish(queue, b"m", delivery_mode=2, message_id=name)


def put_with_id(stage, write, queue, name):
    flags, header = content_header(1, message_id=name)
    write.publish(stage.queue(queue), flags, b"", queue.encode(), header, b"m")


def test_a_duplicate_in_a_write_is_left_out_and_the_rest_commits(stage, client):
    give_windows(stage)
    declare(client, "a", **{"x-dedup-window": True})
    declare(client, "b")
    with_id(client, "a", "1")
    flushed(stage)
    write = stage.broker.atomic.begin()
    for name in ("1", "2", "2"):
        put_with_id(stage, write, "a", name)
    put(stage, write, "b", b"m")
    assert commit(stage, write) is False
    assert (client.count("a"), client.count("b")) == (2, 1)
    with_id(client, "a", "2")
    flushed(stage)
    assert client.count("a") == 2


def test_what_was_undone_is_no_original():
    stage = Stage(Durability.FSYNC)
    give_windows(stage)
    client = Client(stage).open()
    declare(client, "a", **{"x-dedup-window": True})
    declare(client, "b")
    client.call(commands.Confirm.Select())
    write, outcome = stage.broker.atomic.begin(), Outcome()
    put_with_id(stage, write, "a", "1")
    put(stage, write, "b", b"m")
    write.commit(outcome)
    stage.run()
    with_id(client, "a", "1")  # waits for its original
    stage.run()
    stage.topics.decide_error = StorageError("disk on fire")
    flushed(stage)
    assert outcome.failed
    assert client.names() == ["Basic.Nack"]
    with_id(client, "a", "1")
    flushed(stage)
    assert client.names() == ["Basic.Ack"]
    assert client.count("a") == 1


def test_what_lacks_copies_is_neither_delivered_nor_an_original():
    stage = Stage(Durability.FSYNC)
    give_windows(stage)
    client = Client(stage).open()
    declare(client, "a", **{"x-dedup-window": True})
    client.call(commands.Confirm.Select())
    write, outcome = stage.broker.atomic.begin(), Outcome()
    put_with_id(stage, write, "a", "1")
    write.commit(outcome)
    stage.run()
    stage.log("a").refuse(NotEnoughCopiesError("one node is in sync"))
    stage.run()
    assert outcome.failed
    stage.log("a").refuse(None)
    flushed(stage)
    assert client.count("a") == 0
    with_id(client, "a", "1")
    flushed(stage)
    assert client.names() == ["Basic.Ack"]
    assert client.count("a") == 1


def test_a_write_to_a_log_that_lacks_copies_leaves_nothing_in_others(stage, client):
    declare(client, "a", "b")
    stage.log("b").refuse(NotEnoughCopiesError("one node is in sync"))
    write = stage.broker.atomic.begin()
    for queue in ("a", "b"):
        put(stage, write, queue, b"m")
    assert commit(stage, write) is True
    assert [stage.log(queue).end for queue in ("a", "b")] == [0, 0]
    assert [str(error) for _, error in stage.reported] == ["one node is in sync"]


def test_a_write_waits_until_a_queue_knows_what_it_has_seen(stage, client):
    declare(client, "a")
    queue = stage.queue("a")
    queue.held = True
    write, outcome = stage.broker.atomic.begin(), Outcome()
    put(stage, write, "a", b"m")
    write.commit(outcome)
    flushed(stage)
    assert outcome.failed is None
    queue.release()
    flushed(stage)
    assert outcome.failed is False
    assert client.count("a") == 1


def test_a_write_to_a_queue_that_reads_its_backlog_does_not_wait_for_itself(monkeypatch):
    monkeypatch.setattr(memory_log, "KEPT_TOPICS", {*memory_log.KEPT_TOPICS, "a"})
    stage = Stage(Durability.FSYNC)
    client = Client(stage).open()
    declare(client, "a", **{"x-max-priority": 5, "x-dedup-window": True})
    publish(client, "a", b"m", message_id="0", priority=3)
    for _ in range(5):
        stage.advance(60)  # the window is written
        flushed(stage)
    stage.log("a").fetch_error = StorageError("slow")
    definition = stage.queue("a").definition
    stage = Stage(Durability.FSYNC, topics=stage.topics, state=stage.state)
    found = stage.definitions()
    found.queues.append(definition)
    stage.restore(found)
    client = Client(stage).open()
    assert stage.queue("a").is_restoring
    with_id(client, "a", "1")
    write, outcome = stage.broker.atomic.begin(), Outcome()
    for name in ("1", "2"):
        put_with_id(stage, write, "a", name)
    write.commit(outcome)
    flushed(stage)
    stage.log("a").fetch_error = None
    for _ in range(5):
        stage.advance(10)
        flushed(stage)
    assert outcome.failed is False
    assert client.count("a") == 3


STEPS = st.one_of(
    st.tuples(st.just("publish"), st.sampled_from(["a", "b"]), st.integers(0, 3)),
    st.tuples(
        st.just("write"),
        st.lists(st.tuples(st.sampled_from(["a", "b"]), st.integers(0, 3)), max_size=3),
        st.booleans(),
    ),
    st.tuples(st.just("turn")),
    st.tuples(st.just("flush"), st.sampled_from(["a", "b"])),
)


# Dead letters that its own preparation brings stand behind its records.
BEHIND = [
    ("publish", "b", 0),
    ("turn",),
    ("flush", "b"),
    ("turn",),
    ("publish", "a", 1),
    ("turn",),
    ("write", [("a", 1), ("a", 2)], True),
    ("publish", "b", 1),
    ("publish", "b", 2),
]


@example(BEHIND)
@settings(max_examples=examples(100))
@given(st.lists(STEPS, max_size=20))
def test_all_writes_end_whatever_duplicates_they_share(steps):
    stage = Stage(Durability.FSYNC)
    give_windows(stage)
    client = Client(stage).open()
    window = {"x-dedup-window": True}
    declare(client, "a", **window)
    dead = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "a"}
    declare(client, "b", **{"x-max-length": 1, "x-overflow": "reject-publish-dlx"}, **dead)
    outcomes = []
    for step, *details in steps:
        match step:
            case "publish":
                queue, number = details
                data = message(queue, b"m", delivery_mode=2, message_id=str(number))
                client.connection.received(memoryview(bytearray(data)))
            case "write":
                write = stage.broker.atomic.begin()
                published, settles = details
                for queue, number in published:
                    put_with_id(stage, write, queue, str(number))
                if settles and (got := stage.queue("b").get()) is not None:
                    write.settle(stage.queue("b"), [(got[0], got[0] + 1)])
                outcomes.append(Outcome())
                write.commit(outcomes[-1])
            case "turn":
                stage.run_once()
            case "flush":
                stage.log(details[0]).commit()
    for _ in range(2 * len(steps) + 2):
        flushed(stage)
    assert None not in [outcome.failed for outcome in outcomes]
    assert all(stage.log(queue).committed == stage.log(queue).end for queue in ("a", "b"))
    assert stage.reported == []


def test_writes_are_busy_until_all_are_decided(stage, client):
    declare(client, "q")
    atomic = stage.broker.atomic
    write = atomic.begin()
    put(stage, write, "q", b"x")
    assert not atomic.is_busy
    write.commit(Outcome())
    assert atomic.is_busy
    flushed(stage)
    flushed(stage)
    assert not atomic.is_busy


@pytest.mark.parametrize("lacks_copies", [False, True])
def test_joint_writes_end_though_one_fails_while_another_waits_for_a_queue(lacks_copies):
    stage = Stage(Durability.FSYNC)
    client = Client(stage).open()
    declare(client, "a", "b")
    stage.queue("b").held = True
    atomic, outcome = stage.broker.atomic, Outcome()
    writes = [atomic.begin(), atomic.begin()]
    for write, queue in zip(writes, ("a", "b"), strict=True):
        put(stage, write, queue, b"m")
    joint = atomic.commit_together(writes, outcome)
    stage.run()
    if lacks_copies:
        stage.log("a").refuse(NotEnoughCopiesError("one node is in sync"))
    else:
        stage.log("a").fail(StorageError("disk on fire"))
    stage.run()
    assert outcome.failed is None
    stage.queue("b").release()
    flushed(stage)
    assert outcome.failed is True
    assert joint.error is not None
    assert not atomic.is_busy
    assert stage.log("b").end == 0
