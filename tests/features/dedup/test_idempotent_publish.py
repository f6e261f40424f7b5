"""Numbering publishers, windows of exchanges and half messages against logs that fail and crash."""

from unittest.mock import Mock

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pamqp import commands, header

from leveret.core.publish_interceptors import PublishContext
from leveret.core.routing.message import StoredMessage
from leveret.errors import BROKER_ERROR, ChannelError, ConnectionClosingError, StorageError
from leveret.features.dedup.producers import NUMBERS, SIZE, Producer, Producers
from leveret.features.dedup.sequences import Position
from leveret.ports import Durability
from leveret.ports.after_all import AfterAll
from leveret.ports.authentication import UnansweredError
from leveret.ports.records import RecordFlag
from tests.support import memory_log
from tests.support.client import Client, message
from tests.support.examples import examples
from tests.support.gate import Gate
from tests.support.memory_log import MemoryTopicLog
from tests.support.stage import Stage

INTERNAL = ("leveret.producers", "leveret.seen", "leveret.prepared")


@pytest.fixture(autouse=True)
def _kept(monkeypatch):
    monkeypatch.setattr(memory_log, "KEPT_TOPICS", {*memory_log.KEPT_TOPICS, *INTERNAL, "q"})


class Channel:
    alive = True
    confirms_publishes = True
    is_transactional = False
    origin = None

    def __init__(self):
        self.refused_tags, self.closed_with = set(), []

    def refused(self, first, stop):
        self.refused_tags.update(range(first, stop))

    def require(self, *_):
        pass

    def send_back(self, message):
        pass

    def close(self, error):
        self.closed_with.append(str(error))


class Fate:
    def __init__(self):
        self.failed = None

    def done(self, *, failed):
        assert self.failed is None
        self.failed = failed


class World:
    """One virtual host with queue q behind exchange x, over crashes."""

    def __init__(self, *, window=False):
        self.window = window
        self.user = "guest"
        self.topics = self.state = None
        self.tag = 0
        self.open()

    def open(self):
        self.stage = Stage(Durability.FSYNC, topics=self.topics, state=self.state)
        self.topics, self.state = self.stage.topics, self.stage.state
        self.channel = Channel()
        vhost = self.vhost = self.stage.broker.vhosts["/"]
        options = {"durable": True, "auto_delete": False}
        arguments = {"x-dedup-window": True} if self.window else {}
        vhost.declare_exchange("x", "fanout", internal=False, arguments=arguments, **options)
        vhost.declare_queue("q", exclusive=False, arguments={}, owner=None, **options)
        vhost.bind_queue("q", "x", "", {}, None)
        self.idempotency = self.stage.broker.idempotency
        self.idempotency.restore([vhost])
        self.stage.run()

    def crash(self):
        for log in self.topics.logs.values():
            log.batches = [batch for batch in log.batches if batch.stop_offset <= log.committed]
        self.open()

    def context(self, body=b"x", requests=0, **properties):
        self.tag += 1
        head = header.ContentHeader(0, len(body), commands.Basic.Properties(**properties))
        message = StoredMessage(b"x", b"", head.marshal(), body, RecordFlag.HAS_HEADERS)
        return PublishContext(
            self.vhost,
            message,
            [b""],
            requests,
            False,
            self.tag,
            self.user,
            self.channel,
            self.stage.broker.timers.wall_ms(),
        )

    def publish(self, step, context):
        """(tag, fate) of a message that was taken."""
        fate = Fate()
        taken = step.intercept(context)
        assert len(taken) == 1
        taken[0].await_commit(fate)
        return context.tag, fate

    def number(self, sequence, epoch=0, producer="p"):
        headers = {
            "x-producer-id": producer,
            "x-producer-epoch": epoch,
            "x-producer-seq": sequence,
        }
        context = self.context(str(sequence).encode(), RecordFlag.WANTS_ORDER, headers=headers)
        return self.publish(self.idempotency.interceptor, context)

    def keyed(self, sequence):
        context = self.context(str(sequence).encode(), message_id=f"m{sequence}")
        return self.publish(self.idempotency.interceptor, context)

    def settle_down(self):
        for _ in range(20):
            self.stage.run()
            for log in self.topics.logs.values():
                if not log.deleted:
                    log.commit()
        self.stage.run()

    @property
    def bodies(self):
        log = self.stage.log("q")
        return [
            int(body)
            for batch in log.batches
            for offset, _, _, _, _, _, body in batch.records()
            if offset < log.committed and offset not in log.settled
        ]


EVENTS = st.lists(
    st.one_of(
        st.tuples(st.just("send"), st.integers(1, 4)),
        st.tuples(st.just("again"), st.just(0)),
        st.tuples(st.just("run"), st.just(0)),
        st.tuples(st.just("commit"), st.integers(0, 2)),
        st.tuples(st.just("fail"), st.integers(0, 2)),
        st.tuples(st.just("append_error"), st.integers(0, 2)),
        st.tuples(st.just("decide_error"), st.just(0)),
        st.tuples(st.just("crash"), st.just(0)),
    ),
    max_size=40,
)


@pytest.mark.covers("C-208")
@pytest.mark.parametrize("kind", ["number", "keyed"])
@settings(max_examples=examples(150))
@given(events=EVENTS)
def test_whoever_repeats_what_was_not_confirmed_has_it_stored_once(  # noqa: C901  # flat
    kind, events
):
    world = World(window=kind == "keyed")
    publish = getattr(world, kind)
    sent, confirmed, waiting = 0, set(), []

    def look():
        for number, tag, fate in list(waiting):
            if fate.failed is not None:
                waiting.remove((number, tag, fate))
                if not fate.failed and tag not in world.channel.refused_tags:
                    confirmed.add(number)

    def send_again():
        waiting.clear()
        again = [number for number in range(sent) if number not in confirmed]
        waiting.extend((number, *publish(number)) for number in again)

    names = ("q", "leveret.seen", "leveret.producers")
    for event, value in events:
        log = world.topics.logs.get(("/", names[value % 3]))
        if event == "send":
            for _ in range(value):
                waiting.append((sent, *publish(sent)))
                sent += 1
        elif event == "again":
            look()
            send_again()
        elif event == "run":
            world.stage.run()
        elif event == "commit" and log is not None:
            log.commit()
            world.stage.run()
        elif event == "fail" and log is not None:
            log.fail(StorageError("flush"))
            world.stage.run()
        elif event == "append_error" and log is not None:
            log.append_error = None if log.append_error else StorageError("append")
        elif event == "decide_error":
            failing = world.topics.decide_error
            world.topics.decide_error = None if failing else StorageError("decide")
        elif event == "crash":
            look()
            world.crash()
            waiting.clear()
    for log in world.topics.logs.values():
        log.append_error = None
    world.topics.decide_error = None
    for _ in range(60):
        world.settle_down()
        look()
        if len(confirmed) == sent:
            break
        send_again()
    assert confirmed == set(range(sent))
    assert sorted(world.bodies) == list(range(sent))
    if kind == "number":
        assert world.bodies == list(range(sent))


@pytest.mark.covers("C-208")
@pytest.mark.parametrize("delay_ms", [0, 5000])
def test_a_queue_that_lacks_copies_has_only_its_own_messages_refused(delay_ms):
    stage = Stage(Durability.FSYNC)
    clients = {name: Client(stage).open() for name in ("quorum", "classic")}
    for name, client in clients.items():
        client.declare(name, durable=True, arguments={"x-queue-type": name})
        client.call(commands.Confirm.Select())
    stage.topics.in_sync_count = 1

    def publish_together(sequence):
        for name, client in clients.items():
            headers = {"x-producer-id": name, "x-producer-epoch": 0, "x-producer-seq": sequence}
            if name == "classic":
                headers["x-delay"] = delay_ms
            sent = message(name, b"m", delivery_mode=2, headers=headers)
            client.connection.received(memoryview(bytearray(sent)))
        for _ in range(4):
            stage.run()
            for log in list(stage.topics.logs.values()):
                log.commit()
        stage.run()
        return [client.names() for client in clients.values()]

    for sequence in range(3):
        answers = publish_together(sequence)
        assert answers == [["Basic.Nack"], ["Basic.Ack"]]
        delayed = stage.broker.delayed.find("/")
        stored = stage.log("classic").end if delayed is None else delayed.store.pending_count
        assert stored == sequence + 1
    assert list(stage.log("leveret.producers").undone) == []
    stage.topics.in_sync_count = None
    assert publish_together(0) == [["Basic.Ack"], ["Basic.Ack"]]
    assert stage.log("quorum").end == 1


def flush(stage):
    """Have all disks flush, as often as one write leads to the next."""
    for _ in range(3):
        for log in list(stage.topics.logs.values()):
            log.commit()
        stage.run()


def test_a_delayed_message_is_stored_once_though_other_producers_are_refused():
    stage = Stage(Durability.FSYNC)
    client, other = Client(stage).open(), Client(stage).open()
    client.declare("q", durable=True)
    limits = {"x-max-length": 1, "x-overflow": "reject-publish"}
    client.declare("small", durable=True, arguments=limits)
    client.call(commands.Confirm.Select())
    numbers = {"x-producer-epoch": 0, "x-producer-seq": 0}
    delayed = {"x-producer-id": "a", "x-delay": 60_000, **numbers}
    delayed = message("q", b"m", headers=delayed, delivery_mode=2)
    refused = {"x-producer-id": "b", **numbers}
    client.feed(delayed + message("small", b"1", headers=refused, delivery_mode=2))
    stage.run()
    other.publish("small", b"0", delivery_mode=2)  # it is full now
    stage.run()
    flush(stage)
    assert client.names() == ["Basic.Ack", "Basic.Nack"]
    client.feed(delayed)
    stage.run()
    flush(stage)
    assert client.names() == ["Basic.Ack"]
    assert stage.broker.delayed.find("/").store.pending_count == 1


def in_transaction(stage, *queues):
    """Begin to commit a transaction with the same message for each queue."""
    client = Client(stage).open()
    client.call(commands.Tx.Select())
    for queue in queues:
        client.publish(queue, b"m", headers={"x-dedup-id": "1"}, delivery_mode=2)
    client.send(commands.Tx.Commit())
    stage.run()
    return client


@pytest.mark.parametrize("is_in_transaction", [False, True])
@pytest.mark.parametrize("is_stored", [False, True])
def test_a_transaction_with_a_duplicate_ends_as_its_original(is_in_transaction, is_stored):
    stage = Stage(Durability.FSYNC)
    client = Client(stage).open()
    client.declare("q", durable=True, arguments={"x-dedup-window": 60_000})
    client.declare("other", durable=True)
    if is_in_transaction:
        in_transaction(stage, "q", "other")
    else:
        client.publish("q", b"m", headers={"x-dedup-id": "1"}, delivery_mode=2)
        stage.run()
    later = in_transaction(stage, "q")
    assert later.names() == []
    fails = "other" if is_in_transaction else "q"
    if is_stored:
        stage.log(fails).commit()
    else:
        stage.log(fails).fail(StorageError("no space"))
    stage.run()
    flush(stage)
    assert later.names() == ["Tx.CommitOk" if is_stored else "Channel.Close"]
    assert stage.queue("q").message_count == is_stored


def test_many_producers_survive_in_few_records():
    log = MemoryTopicLog()
    stage = Stage()
    producers = Producers(log, stage.broker._environment)
    for round_ in range(3):
        moved = {Producer(f"p{n}", "u"): Position(1, round_) for n in range(5)}
        record = producers.record(moved, 7)
        producers.builder.add(1, 7, b"", b"", b"", record)
        producers.take_in(producers.builder)
        producers.flush()
        producers.apply(record)
    assert list(log.settled) == [(0, 2)]
    again = Producers(log, stage.broker._environment)
    again.held = True
    again.restore()
    stage.run()
    assert not again.held
    assert {name: known.position for name, known in again.items()} == {
        Producer(f"p{n}", "u"): Position(1, 2) for n in range(5)
    }
    again.forget_idle(8)
    assert len(again) == 0
    assert log.settled.count == 3


def test_a_forgotten_producer_begins_anew_and_its_neighbours_do_not():
    world = World()
    for producer in ("a", "b"):
        world.number(0, producer=producer)
    world.settle_down()
    fate = Fate()
    writer = world.idempotency.interceptor.writers["/"]
    assert not writer.forget_producer("a", "somebody else", fate)
    assert writer.forget_producer("a", None, fate)
    assert not writer.forget_producer("none", None, fate)
    world.settle_down()
    assert fate.failed is False
    world.crash()
    world.number(0, producer="a")
    world.number(0, producer="b")
    world.settle_down()
    assert len(world.bodies) == 3


def test_a_producer_is_its_users():
    world = World()
    for user in ("alice", "bob"):
        world.user = user
        for sequence in range(2):
            world.number(sequence, epoch=9 if user == "alice" else 0)
    world.settle_down()
    assert world.bodies == [0, 1, 0, 1]
    world.crash()
    world.user = "bob"
    world.number(2)
    world.settle_down()
    assert world.bodies == [0, 1, 0, 1, 2]
    assert world.channel.closed_with == []


def test_a_producer_of_an_older_release_goes_on():
    world = World()
    world.number(0)
    world.settle_down()
    producers = world.idempotency.interceptor.writers["/"].producers
    record = SIZE.pack(1) + b"q" + NUMBERS.pack(3, 0, world.stage.now)
    producers.builder.add(1, world.stage.now, b"", b"", b"", record)
    world.stage.turn.touch(producers)
    world.settle_down()
    world.crash()
    world.settle_down()
    world.number(1, epoch=3, producer="q")
    world.user = "bob"
    world.number(2, epoch=3, producer="q")
    world.settle_down()
    assert world.bodies == [0, 1]
    assert len(world.channel.refused_tags) == 1  # bob has to begin with 0
    known = world.idempotency.interceptor.writers["/"].producers.items()
    positions = {producer: each.position for producer, each in known}
    assert positions == {Producer("p", "guest"): (0, 0), Producer("q", "guest"): (3, 1)}


@pytest.mark.parametrize("topic", ["leveret.producers", "leveret.seen"])
def test_what_cannot_be_read_yet_is_awaited(topic):
    world = World(window=True)
    send = world.number if topic == "leveret.producers" else world.keyed
    for sequence in range(2):
        send(sequence)
        world.settle_down()
    world.stage.log(topic).fetch_error = StorageError("no answer")
    world.crash()
    _, fate = send(1)
    world.settle_down()
    assert fate.failed is None
    assert len(world.stage.reported) == 1
    world.stage.log(topic).fetch_error = None
    world.stage.advance(1)
    world.settle_down()
    assert fate.failed is False
    assert world.bodies == [0, 1]
    world.stage.reported.clear()


def test_positions_before_a_damaged_one_are_restored():
    world = World()
    world.number(0)
    world.settle_down()
    producers = world.idempotency.interceptor.writers["/"].producers
    whole = SIZE.pack(1) + b"q" + NUMBERS.pack(3, 0, world.stage.now)
    for record in (whole + whole[:-1], whole[:-1]):
        producers.builder.add(1, world.stage.now, b"", b"", b"", record)
    world.stage.turn.touch(producers)
    world.settle_down()
    world.crash()
    world.settle_down()
    again = world.idempotency.interceptor.writers["/"].producers
    assert {producer.id: each.position for producer, each in again.items()} == {
        "p": (0, 0),
        "q": (3, 0),
    }
    assert list(again.log.settled) == [(2, 3)]  # it holds no position
    assert [str(error) for _, error in world.stage.reported] == [
        f"record {offset} of {again!r}: a publisher's position is cut off" for offset in (1, 2)
    ]


def test_there_are_only_so_many_producers():
    world = World()
    limits = world.idempotency.interceptor._limits
    world.idempotency.interceptor._limits = type(limits)(1, limits.producer_idle_ms)
    world.number(0, producer="a")
    world.settle_down()
    with pytest.raises(ChannelError, match="there are 1 producers already"):
        world.number(0, producer="b")
    world.number(1, producer="a")


def test_half_messages_that_are_gathered_while_a_flush_fails_are_refused():
    world = World()

    def prepare(id_):
        headers = {"x-prepare": True, "x-prepare-id": id_}
        context = world.context(id_.encode(), RecordFlag.WANTS_PREPARE, headers=headers)
        return world.publish(world.idempotency.prepared, context)[1]

    fates = [prepare("first")]
    world.stage.run()
    fates.append(prepare("gathered"))
    world.stage.log("leveret.prepared").fail(StorageError("flush"))
    world.settle_down()
    assert [fate.failed for fate in fates] == [True, True]
    assert len(world.idempotency.prepared.kept["/"]) == 0
    again = prepare("gathered")
    world.settle_down()
    assert again.failed is False
    world.crash()
    assert world.idempotency.prepared.kept["/"].find("gathered") is not None


@pytest.mark.covers("C-208")
@settings(max_examples=examples(100))
@given(
    st.lists(
        st.one_of(
            st.tuples(st.sampled_from(["prepare", "commit", "rollback"]), st.integers(0, 4)),
            st.tuples(st.sampled_from(["settle", "fail", "crash"]), st.just(0)),
        ),
        max_size=30,
    )
)
def test_half_messages_take_effect_once_or_never(events):
    world = World()
    pending, stored = set(), []
    for event, value in events:
        id_ = str(value)
        messages = world.idempotency.prepared.kept.get("/")
        if event == "prepare":
            headers = {"x-prepare": True, "x-prepare-id": id_}
            context = world.context(id_.encode(), RecordFlag.WANTS_PREPARE, headers=headers)
            _, fate = world.publish(world.idempotency.prepared, context)
            world.settle_down()
            assert fate.failed is False
            pending.add(id_)
        elif event in {"commit", "rollback"}:
            found = None if messages is None else messages.find(id_)
            assert (found is not None) == (id_ in pending)
            if found is not None:
                outcome = AfterAll(1)
                messages.decide(found, commit=event == "commit", decided=outcome)
                world.settle_down()
                assert (outcome.pending, outcome.failed) == (0, False)
                pending.discard(id_)
                stored += [int(id_)] if event == "commit" else []
        elif event == "settle":
            world.settle_down()
        elif event == "fail" and pending:
            name = sorted(pending)[0]
            outcome = AfterAll(1)
            world.topics.decide_error = StorageError("decide")
            messages.decide(messages.find(name), commit=True, decided=outcome)
            world.settle_down()
            world.topics.decide_error = None
            assert (outcome.pending, outcome.failed) == (0, True)
        elif event == "crash":
            world.crash()
        assert world.bodies == stored


# -- messages that are refused in the middle of a batch


@pytest.mark.parametrize("error", [ConnectionClosingError(501, "no key"), RuntimeError("a bug")])
def test_a_message_that_is_refused_holds_up_nobody_else(error):
    world = World()
    world.channel.require = Mock(side_effect=error)
    prepared(world)
    _, fate = world.number(0)
    world.settle_down()
    assert fate.failed is False
    assert world.bodies == [0]
    if isinstance(error, RuntimeError):
        assert world.stage.reported.pop()[1] is error
        assert world.channel.closed_with == [str(ConnectionClosingError(541, BROKER_ERROR))]
    else:
        assert world.channel.closed_with == [str(error)]


def test_a_message_whose_publishers_rights_are_asked_for_is_decided_when_they_are_known():
    world, gate = World(), Gate()

    async def ask():
        await gate
        world.channel.require = Mock()

    world.channel.require = Mock(side_effect=UnansweredError(ask))
    _, kept = prepared(world)
    _, later = world.number(0)
    world.settle_down()
    assert (kept.failed, later.failed) == (None, None)
    gate.open()
    world.settle_down()
    assert (kept.failed, later.failed) == (False, False)
    assert [len(each) for each in world.idempotency.prepared.kept.values()] == [1]


def prepared(world):
    """(tag, fate) of a numbered message that also waits for another decision."""
    headers = {
        "x-producer-id": "other",
        "x-producer-epoch": 0,
        "x-producer-seq": 0,
        "x-prepare": True,
        "x-check-queue": "q",
    }
    requests = RecordFlag.WANTS_ORDER | RecordFlag.WANTS_PREPARE
    context = world.context(b"p", requests, headers=headers, message_id="i")
    return world.publish(world.idempotency.interceptor, context)


def test_what_is_refused_late_closes_no_other_channel():
    stage = Stage()
    client = Client(stage).open()
    client.declare("q", durable=True)

    def publish(sequence):
        headers = {"x-producer-id": "p", "x-producer-epoch": 0, "x-producer-seq": sequence}
        client.publish("q", b"m", headers=headers)

    publish(0)
    writer = stage.broker.idempotency.interceptor.writers["/"]
    writer.producers.held = True
    publish(7)  # 1 is the next one
    client.call(commands.Channel.Close(200, "", 0, 0))
    client.call(commands.Channel.Open())
    writer.producers.held = False
    writer.resume()
    assert client.names() == []
    assert client.count("q") == 1
