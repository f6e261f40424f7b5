"""Staged batches of a node: features of messages, failures of disks, and what is left behind."""

import asyncio
from dataclasses import replace

import pytest
from pamqp import commands

from leveret.errors import ChannelError, StorageError
from leveret.features.staged_batches import batch_commit, staged
from leveret.features.staged_batches.batch_commit import BatchCommit
from leveret.features.staged_batches.records import CommitNote, pack_part
from leveret.features.staged_batches.rules import BatchLimits, BatchRefusedError
from leveret.ports.authentication import UnansweredError
from leveret.ports.counters import DROP_UNROUTABLE
from leveret.ports.definitions import PermissionDefinition, UserDefinition, VhostDefinition
from leveret.ports.records import RecordFlag
from leveret.ports.waiting import until
from leveret.storage.store import FileTopicStore
from tests.recovery.node import Node
from tests.support.batches import Batches
from tests.support.chunks import Row, chunk


class World:
    """A node with queues, and the batches of a user on it."""

    def __init__(self):
        self.loop = asyncio.new_event_loop()
        self.node = Node(self.loop)
        self.use()
        for name in ("q", "r"):
            self.declare(name)

    def use(self):
        self.batches = Batches(self.node)
        self.stage, self.commit = self.batches.stage, self.batches.commit
        self.bodies, self.records = self.batches.bodies, self.batches.records

    def declare(self, name, **arguments):
        self.node.declare(name, **arguments)

    def exchange(self, name, type_="direct", **arguments):
        self.node.client.call(
            commands.Exchange.Declare(exchange=name, exchange_type=type_, arguments=arguments)
        )

    def bind(self, queue, exchange, key="", **arguments):
        self.node.client.call(commands.Queue.Bind(0, queue, exchange, key, arguments=arguments))

    def restart(self, *, kill=True):
        if kill:
            self.node.kill()
        else:
            self.node.close()
        self.node = self.node.next_life()
        self.use()

    def publish(self, *rows, **how):
        """Stage and commit one batch; return the answer."""
        known = self.batches.batches.book.find(self.batches.id("w"))
        number = 0 if known is None or known.note is None else known.note.number + 1
        self.stage("w", number, "p", rows)
        return self.commit("w", number, "p", **how)

    def publish_one(self, writer, number):
        """Stage and commit a batch of one message."""
        self.stage(writer, number, "p", [Row("q", b"1")])
        return self.commit(writer, number, "p")


@pytest.fixture
def world():
    world = World()
    yield world
    world.node.kill()
    world.loop.close()


# -- what messages ask for


def test_a_batch_is_as_if_it_had_been_published(world):
    rows = [Row("q", b"1", properties={"priority": 3, "headers": {"x-tags": ["a"]}})]
    world.publish(*rows)
    world.node.publish("q", b"1", priority=3, headers={"x-tags": ["a"]})
    first, second = world.records("q")
    assert first[1] == second[1]
    assert first[3:] == second[3:]


def test_copies_go_to_further_keys_and_blind_ones_are_hidden(world):
    headers = {"CC": ["q"], "BCC": ["r"]}
    assert world.publish(Row("none", b"1", properties={"headers": headers}))["unrouted"] == 0
    assert (world.bodies("q"), world.bodies("r")) == ([b"1"], [b"1"])
    [record] = world.records("q")
    assert record[1] & RecordFlag.BLIND_COPIED
    assert not record[1] & RecordFlag.SELECTS_KEYS
    world.node.publish("q", b"2", headers={"BCC": ["r"]})
    assert world.records("q")[1][1] & RecordFlag.BLIND_COPIED


def test_headers_exchanges_and_filters_look_at_each_message(world):
    world.exchange("h", "headers")
    world.bind("q", "h", kind="a")
    world.bind("r", "h", kind="b")
    rows = [Row("", b"%d" % n, "h", properties={"headers": {"kind": "abc"[n]}}) for n in range(3)]
    assert world.publish(*rows)["unrouted"] == 1
    assert (world.bodies("q"), world.bodies("r")) == ([b"0"], [b"1"])


def test_alternate_exchanges_take_what_is_not_routed(world):
    world.exchange("rest", "fanout")
    world.bind("r", "rest")
    world.exchange("x", **{"alternate-exchange": "rest"})
    world.bind("q", "x", "k")
    assert world.publish(Row("k", b"1", "x"), Row("other", b"2", "x"))["unrouted"] == 0
    assert (world.bodies("q"), world.bodies("r")) == ([b"1"], [b"2"])


def test_a_mandatory_batch_is_published_whole_or_not(world):
    world.exchange("h", "headers")
    world.bind("q", "h", kind="a")
    delayed = Row(value=b"late", properties={"headers": {"x-delay": 1000}})
    with pytest.raises(BatchRefusedError, match=r"no queue gets: 1.*'h' with routing key 'k'"):
        world.publish(Row(value=b"1"), delayed, Row("k", b"2", "h"), mandatory=True)
    world.node.advance(2)
    assert world.bodies("q") == []
    world.bind("q", "h")
    assert world.commit("w", 0, "p", mandatory=True)["messages"] == 3
    world.node.advance(2)
    assert sorted(world.bodies("q")) == [b"1", b"2", b"late"]


@pytest.mark.parametrize("kind", ["classic", "quorum", "stream"])
def test_all_kinds_of_queues_take_part(world, kind):
    world.declare("k", queue_type=kind)
    world.publish(Row("k", b"1"), Row("q", b"2"))
    assert world.bodies("k") == [b"1"]


def test_partitioned_queues_place_by_key(world):
    world.declare("parts", partitions=3)
    keys = [f"key-{n}" for n in range(20)]
    rows = [Row("parts", k.encode(), properties={"headers": {"x-partition-key": k}}) for k in keys]
    world.publish(*rows)
    for key in keys:
        world.node.publish("parts", key.encode(), headers={"x-partition-key": key})
    queue = world.node.queue("parts")
    found = [world.batches.do(world.batches._records(part.log)) for part in queue.partitions]
    for records in found:
        bodies = [record[6] for record in records]
        assert sorted(bodies) == sorted([*set(bodies)] * 2)
    assert sum(map(len, found)) == 40


def test_delayed_messages_wait_in_their_store(world):
    delayed = {"headers": {"x-delay": 60_000}}
    answer = world.publish(Row(value=b"late", properties=delayed), Row(value=b"now"))
    assert answer == {"outcome": "committed", "messages": 2, "unrouted": 0}
    assert world.bodies("q") == [b"now"]
    world.restart()
    world.node.advance(61)
    assert world.bodies("q") == [b"now", b"late"]


def test_a_batch_that_lacks_copies_delays_no_message_until_it_is_committed(world, monkeypatch):
    copies = None
    monkeypatch.setattr(FileTopicStore, "in_sync_count", property(lambda _: copies))
    delayed = {"headers": {"x-delay": 60_000}}
    world.declare("two copies", min_isr=2)
    late = Row("r", b"late", properties=delayed)
    batches = [
        ([late, Row("two copies", b"now")], "queue 'two copies' .*too few copies"),
        ([late, Row("two copies", b"later", properties=delayed)], "too few copies"),
    ]
    for number, (rows, error) in enumerate(batches, 1):
        copies = 1
        world.stage("w", number, "p", rows)
        for _ in range(2):
            with pytest.raises(StorageError, match=f"could not be stored: .*{error}"):
                world.commit("w", number, "p")
        copies = None
        world.commit("w", number, "p")
    world.node.advance(61)
    assert (world.bodies("two copies"), world.bodies("r")) == ([b"now", b"later"], [b"late"] * 2)


def test_a_queues_window_drops_duplicates(world):
    world.declare("once", dedup_window=True)
    seen = [Row("once", b"%d" % n, properties={"message_id": "same"}) for n in range(2)]
    world.publish(*seen, Row("q", b"2"))
    world.publish(*seen)
    assert world.bodies("once") == [b"0"]


def test_an_exchange_with_a_window_refuses_as_in_a_transaction(world):
    world.exchange("x", **{"x-dedup-window": True})
    world.bind("q", "x", "q")
    with pytest.raises(BatchRefusedError, match="no message of a transaction") as caught:
        world.publish(Row("q", b"1", "x", properties={"message_id": "m"}), Row("q", b"2"))
    assert caught.value.code == "refused"
    assert world.bodies("q") == []
    world.batches.abort("w", 0)
    world.publish(Row("q", b"3", "x"))  # without an id it is as any other
    assert world.bodies("q") == [b"3"]


def test_a_full_queue_refuses_all_and_is_named(world):
    world.declare("small", max_length=2, overflow="reject-publish")
    rows = [Row("q", b"0"), *[Row("small", b"%d" % n) for n in range(3)]]
    with pytest.raises(BatchRefusedError, match=r"queue 'small' .*has no room") as caught:
        world.publish(*rows)
    assert caught.value.code == "refused"
    assert (world.bodies("q"), world.bodies("small")) == ([], [])
    world.batches.abort("w", 0)
    world.publish(*rows[:3])
    assert world.bodies("small") == [b"0", b"1"]


def test_a_batch_that_a_full_queue_refuses_delays_no_message(world):
    world.declare("small", max_length=1, overflow="reject-publish")
    late = Row("q", b"late", properties={"headers": {"x-delay": 1000}})
    world.stage("w", 0, "p", [late, *[Row("small", b"%d" % n) for n in range(3)]])
    for _ in range(3):  # as whoever commits tries again
        with pytest.raises(BatchRefusedError, match=r"queue 'small' .*has no room"):
            world.commit("w", 0, "p")
    world.node.advance(2)
    assert world.bodies("q") == []


@pytest.mark.parametrize("delay", [None, 0])  # a message that is looked at and not delayed
def test_a_batch_of_several_writes_that_a_full_queue_refuses_delays_no_message(
    world, monkeypatch, delay
):
    monkeypatch.setattr(batch_commit, "WRITE_BYTES", 100)
    monkeypatch.setattr(batch_commit, "WORK_MAX", 2)
    world.declare("small", max_length=6, overflow="reject-publish")
    late = Row("q", b"late", properties={"headers": {"x-delay": 1000}})
    properties = {} if delay is None else {"headers": {"x-delay": delay}}
    rows = [Row("small", b"%d" % n * 20, properties=properties) for n in range(9)]
    world.stage("w", 0, "p", [late, *rows])
    for _ in range(3):
        with pytest.raises(BatchRefusedError, match=r"queue 'small' .*has no room"):
            world.commit("w", 0, "p")
    world.node.advance(2)
    assert (world.bodies("q"), world.bodies("small")) == ([], [])


def test_a_batch_that_unopened_partitions_refuse_together_delays_no_message(world):
    partitioned = {"partitions": 2, "partition_by": "round-robin"}
    world.declare("small", max_length=10, overflow="reject-publish", **partitioned)
    late = Row("q", b"late", properties={"headers": {"x-delay": 1000}})
    world.stage("w", 0, "p", [late, *[Row("small", b"%d" % n) for n in range(16)]])
    with pytest.raises(BatchRefusedError, match="has no room"):
        world.commit("w", 0, "p")
    world.node.advance(2)
    assert world.bodies("q") == []


def test_a_full_queue_refuses_all_in_several_writes(world, monkeypatch):
    monkeypatch.setattr(batch_commit, "WRITE_BYTES", 100)
    monkeypatch.setattr(batch_commit, "WORK_MAX", 2)
    world.declare("small", max_length=7, overflow="reject-publish")
    rows = [Row("small", b"%d" % n) for n in range(8)]
    with pytest.raises(BatchRefusedError):
        world.publish(*rows)
    assert world.bodies("small") == []
    world.batches.abort("w", 0)
    world.publish(*rows[:7])
    assert len(world.bodies("small")) == 7
    assert world.node.reported == []


def test_the_firehose_shows_each_message(world):
    world.node.broker.trace("/", on=True)
    world.bind("r", "amq.rabbitmq.trace", "publish.#")
    world.publish(Row("q", b"1"), Row("none", b"2"))
    assert world.bodies("r") == [b"1", b"2"]
    assert world.bodies("q") == [b"1"]
    vhost = world.node.broker.vhosts["/"]
    assert vhost.counters.value(DROP_UNROUTABLE) == 1


def test_a_queue_that_is_deleted_meanwhile_is_left_out(world, monkeypatch):
    world.bind("q", "amq.fanout")
    world.bind("r", "amq.fanout")
    broker = world.node.broker
    commit_together = broker.atomic.commit_together

    def commit(*args):
        broker.delete_queue(broker.vhosts["/"], world.node.queue("r"))
        return commit_together(*args)

    monkeypatch.setattr(broker.atomic, "commit_together", commit)
    assert world.publish(Row("", b"1", "amq.fanout"))["outcome"] == "committed"
    assert world.bodies("q") == [b"1"]


# -- large batches


def test_many_writes_are_one_batch(world, monkeypatch):
    monkeypatch.setattr(batch_commit, "WRITE_BYTES", 1000)
    monkeypatch.setattr(batch_commit, "WORK_MAX", 10)
    rows = [Row("q" if n % 3 else "r", b"%d" % n) for n in range(500)]
    world.publish(*rows)
    assert [int(body) for body in world.bodies("q")] == [n for n in range(500) if n % 3]
    assert [int(body) for body in world.bodies("r")] == list(range(0, 500, 3))
    world.restart()
    assert len(world.bodies("q")) + len(world.bodies("r")) == 500
    assert world.batches.stored_count == 0


def test_uploads_that_interleave_keep_their_messages_apart(world):
    async def upload():
        chunks = [
            [[Row("q", b"%s%d" % (name, n))] for n in range(30)] for name in (b"a", b"b", b"c")
        ]
        await asyncio.gather(
            *(world.batches.staging("w", 0, f"{n}", *each) for n, each in enumerate(chunks))
        )

    world.batches.do(upload())
    world.restart()
    world.commit("w", 0, "2", "0")
    found = world.bodies("q")
    assert found == [b"%s%d" % (name, n) for name in (b"c", b"a") for n in range(30)]
    assert world.batches.stored_count == 0


# -- who does not wait for the end


def test_a_commit_nobody_waits_for_happens_wholly(world):
    world.stage("w", 0, "p", [Row("q", b"1")])
    batches = world.batches.batches

    async def begin():
        work = batches.commit(world.batches.id("w"), 0, ["p"], world.batches.rights)
        async with asyncio.TaskGroup() as group:
            task = group.create_task(work)
            await until(lambda: batches.notes.log.end > 1, 5)
            task.cancel()

    world.batches.do(begin())
    assert world.bodies("q") == [b"1"]
    assert world.commit("w", 0, "p") == {"outcome": "already committed"}


@pytest.mark.parametrize("passes", range(8))
def test_an_upload_nobody_waits_for_is_there_or_not(world, passes):
    async def begin():
        async with asyncio.TaskGroup() as group:
            work = world.batches.staging("w", 0, "p", [Row("q", b"1")], [Row("q", b"2")])
            task = group.create_task(work)
            for _ in range(passes):
                await asyncio.sleep(0)
            task.cancel()

    world.batches.do(begin())
    known = world.batches.batches.book.part((world.batches.id("w"), 0, "p"))
    assert world.batches.stored_count == (0 if known is None else 2)
    assert world.batches.batches.staged_bytes == (0 if known is None else known.bytes)
    if known is None:
        assert world.stage("w", 0, "p", [Row("q", b"3")])["outcome"] == "staged"
    else:
        rows = [Row("q", b"1")], [Row("q", b"2")]
        assert world.stage("w", 0, "p", *rows)["outcome"] == "repeated"


def test_an_abort_ends_uploads_under_way(world):
    with world.batches.batches.upload(world.batches.id("w"), 0, "p", world.batches.rights) as one:
        world.batches.do(one.take(chunk(Row("q", b"1"))))
        assert world.batches.abort("w", 0) == 0
        with pytest.raises(BatchRefusedError) as caught:
            world.batches.do(one.take(chunk(Row("q", b"2"))))
    assert caught.value.code == "aborted"
    world.node.run()
    assert world.batches.stored_count == 0


# -- repetitions


def test_a_repeated_part_is_compared_after_a_restart(world):
    rows = [Row("q", b"1")]
    answer = world.stage("w", 0, "p", rows)
    world.restart()
    assert world.stage("w", 0, "p", rows) == {**answer, "outcome": "repeated"}
    with pytest.raises(BatchRefusedError, match=answer["checksum"]) as caught:
        world.stage("w", 0, "p", [Row("q", b"2")])
    assert caught.value.code == "conflict"


def test_a_part_of_an_earlier_release_has_no_checksum(world, monkeypatch):
    def pack_as_before(part):
        return pack_part(replace(part, checksum=None))

    monkeypatch.setattr(staged, "pack_part", pack_as_before)
    world.stage("w", 0, "p", [Row("q", b"1")])
    world.restart()
    answer = {"rows": 1, "outcome": "repeated", "checksum": None}
    assert world.stage("w", 0, "p", [Row("q", b"2")]) == answer
    assert world.commit("w", 0, "p")["messages"] == 1
    assert world.bodies("q") == [b"1"]


# -- disks


def test_a_disk_that_fails_leaves_no_part(world):
    world.stage("w", 0, "a", [Row("q", b"1")])
    world.node.files.fail_at = world.node.files.calls
    with pytest.raises(StorageError):
        world.stage("w", 0, "p", [Row("q", b"2")])
    with pytest.raises(StorageError):
        world.commit("w", 0, "a")
    world.node.files.fail_at = None
    world.node.advance(5)
    assert world.stage("w", 0, "p", [Row("q", b"3")])["outcome"] == "staged"
    assert world.commit("w", 0, "a", "p")["messages"] == 2
    assert world.bodies("q") == [b"1", b"3"]


def test_a_batch_fails_if_its_delayed_messages_are_lost_before_the_rest_is_there(
    world, monkeypatch
):
    async def turn_with_a_full_disk():
        world.node.files.fail_at = world.node.files.calls
        world.node.turn.run()
        world.node.files.fail_at = None

    monkeypatch.setattr(batch_commit, "let_others_run", turn_with_a_full_disk)
    delayed = Row(value=b"late", properties={"headers": {"x-delay": 1000}})
    with pytest.raises(StorageError, match="delayed messages of the batch"):
        world.publish(delayed, Row(value=b"now"))
    assert world.bodies("q") == []
    world.node.advance(5)
    monkeypatch.undo()
    assert world.commit("w", 0, "p")["messages"] == 2
    world.node.advance(2)
    assert sorted(world.bodies("q")) == [b"late", b"now"]


def test_a_part_that_the_disk_has_lost_is_missing(world):
    world.stage("w", 0, "p", [Row("q", b"1")])
    world.stage("w", 0, "o", [Row("q", b"2")])
    world.restart(kill=False)
    log = world.batches.batches.records.log
    part = world.batches.batches.book.part((world.batches.id("w"), 0, "p"))
    log.settle(part.ranges)
    world.restart(kill=False)
    with pytest.raises(BatchRefusedError, match="no part 'p'"):
        world.commit("w", 0, "o", "p")
    assert world.commit("w", 0, "o")["messages"] == 1


def test_damage_is_met_at_the_commit(world):
    world.stage("w", 0, "p", [Row("q", b"find me")])
    world.stage("w", 0, "o", [Row("q", b"2")])
    world.restart(kill=False)
    for path, content in world.node.files.files.items():
        if "leveret.staged" in str(path) and b"find me" in content.cached:
            at = content.cached.index(b"find me")
            content.cached = content.cached[:at] + b"FIND ME" + content.cached[at + 7 :]
    with pytest.raises(BatchRefusedError, match="the disk has lost messages of part 'p'"):
        world.commit("w", 0, "o", "p")
    assert world.bodies("q") == []
    assert len(world.node.reported) == 1
    assert world.stage("w", 0, "p", [Row("q", b"1")])["outcome"] == "staged"
    assert world.commit("w", 0, "o", "p")["messages"] == 2


# -- what one user may leave behind


def test_an_empty_commit_of_an_unknown_writer_leaves_nothing(world):
    for number in (5, 3, 5):
        assert world.commit("w", number) == {"outcome": "committed", "messages": 0, "unrouted": 0}
    batches = world.batches.batches
    assert (len(batches.book), batches.notes.log.end) == (0, 0)
    world.publish_one("w", 0)
    assert world.commit("w", 1)["outcome"] == "committed"
    assert world.commit("w", 1)["outcome"] == "already committed"


def test_a_virtual_host_that_was_deleted_has_no_batches_any_more(world):
    """Nor has one that was made anew those of the old one."""
    broker = world.node.broker
    deleted = broker.vhosts["/"]
    broker.remove_vhost("/")
    for _ in range(2):
        with pytest.raises(BatchRefusedError, match="the virtual host was deleted"):
            broker.batches.of(deleted)
        if "/" not in broker.vhosts:
            broker.add_vhost(VhostDefinition("/", incarnation="internal-1"))
    assert broker.batches.of(broker.vhosts["/"]).vhost is broker.vhosts["/"]


def test_limits_of_a_user_are_those_of_all_its_writers(world):
    world.batches.of_node.limits = BatchLimits(parts_per_user_max=3, writers_per_user_max=2)
    other = Batches(world.node, "other")
    world.node.access.put_user(UserDefinition("other", "", ()))
    world.node.access.put_permission(PermissionDefinition("/", "other", "", ".*", ""))

    def is_refused(batches, writer, part="p"):
        with pytest.raises(BatchRefusedError) as caught:
            batches.stage(writer, 0, part, [Row("q", b"1")])
        assert caught.value.code == "full"
        return str(caught.value)

    for writer in ("v", "w"):
        world.stage(writer, 0, "p", [Row("q", b"1")])
    assert "staged_writers_per_user_max" in is_refused(world.batches, "x")
    world.stage("v", 0, "o", [Row("q", b"1")])
    assert "staged_parts_per_user_max" in is_refused(world.batches, "v", "n")
    assert other.stage("x", 0, "p", [Row("q", b"1")])["outcome"] == "staged"

    world.commit("v", 0)
    assert "writers" in is_refused(world.batches, "x")  # a note keeps its writer
    world.restart()
    world.batches.of_node.limits = world.batches.batches.limits = BatchLimits(
        parts_per_user_max=3, writers_per_user_max=2
    )
    assert "writers" in is_refused(world.batches, "x")
    world.batches.forget("v")
    assert world.stage("x", 0, "p", [Row("q", b"1")])["outcome"] == "staged"


# -- in time


def test_parts_expire_and_idle_writers_are_forgotten(world):
    limits = BatchLimits(expire_ms=10_000, writer_idle_ms=100_000)
    world.batches.of_node.limits = limits
    world.stage("w", 0, "p", [Row("q", b"1")])
    world.stage("v", 5, "p", [Row("q", b"1")])
    world.commit("v", 5, "p")
    world.node.advance(9)
    assert world.batches.stored_count == 1
    world.node.advance(61)
    assert world.batches.stored_count == 0
    with pytest.raises(BatchRefusedError, match="no part"):
        world.commit("w", 0, "p")
    assert [each.id.name for each in world.batches.batches.book] == ["v"]
    world.node.advance(121)
    world.node.flush()
    assert len(world.batches.batches.book) == 0
    world.restart()
    assert len(world.batches.batches.book) == 0


def test_old_notes_are_written_anew(world, monkeypatch):
    monkeypatch.setattr(batch_commit, "STALE_RECORDS", 5)
    world.publish_one("idle", 7)
    now = world.node.now
    world.node.advance(1)
    world.publish_one("busy", 0)
    for number in range(1, 12):
        world.commit("busy", number)
    book = world.batches.batches.book
    idle = book.find(world.batches.id("idle")).note
    assert (idle.number, idle.time_ms) == (7, now)
    assert idle.offset > 5
    world.restart()
    notes = {each.id.name: each.note for each in world.batches.batches.book}
    assert (notes["idle"].number, notes["idle"].time_ms) == (7, now)
    assert notes["busy"].number == 11
    log = world.batches.batches.notes.log
    assert log.end - log.settled.overlap(0, log.end) == 2


def test_what_cannot_be_understood_is_told_and_stays(world):
    world.publish_one("w", 3)
    [writer] = world.batches.batches.book
    batches = world.batches.batches
    batches.notes.put("v", b"\x09")
    world.node.run()
    world.restart()
    assert len(world.node.reported) == 1
    assert [each.note for each in world.batches.batches.book] == [
        CommitNote(world.batches.id("w"), 3, world.node.now, writer.note.offset)
    ]


def test_commits_follow_each_other(world, monkeypatch):
    monkeypatch.setattr(batch_commit, "WORK_MAX", 1)
    for writer in ("v", "w"):
        world.stage(writer, 0, "p", [Row("q", writer.encode()) for _ in range(5)])
    batches = world.batches.batches

    async def both():
        return await asyncio.gather(
            *(
                batches.commit(world.batches.id(each), 0, ["p"], world.batches.rights)
                for each in ("v", "w", "w")
            )
        )

    outcomes = [each["outcome"] for each in world.batches.do(both())]
    assert outcomes == ["committed", "committed", "already committed"]
    assert world.bodies("q") in ([b"v"] * 5 + [b"w"] * 5, [b"w"] * 5 + [b"v"] * 5)


def test_a_commit_that_waits_too_long_is_refused(world, monkeypatch):
    monkeypatch.setattr(staged, "GATE_SECONDS_MAX", 0.02)
    world.batches.batches._gate.is_held = True
    with pytest.raises(BatchRefusedError) as caught:
        world.commit("w", 0)
    assert caught.value.code == "busy"


def test_who_may_not_write_any_more_cannot_commit(world):
    world.stage("w", 0, "p", [Row("q", b"1")])
    world.node.client.call(commands.Exchange.Declare(exchange="x"))
    world.stage("w", 0, "o", [Row("q", b"1", "x")])
    world.node.client.call(commands.Exchange.Delete(exchange="x"))
    with pytest.raises(ChannelError) as caught:
        world.commit("w", 0, "p", "o")
    assert caught.value.code == 404
    assert world.commit("w", 0, "p")["messages"] == 1


class SlowRights:
    """Rights of which each answer must be asked for, again and again."""

    tags = ()

    def __init__(self, user):
        self.user = user
        self.asked = self.answered = 0
        self._known = set()

    def _answer(self, *question):
        if question not in self._known:

            async def ask():
                self.asked += 1
                self._known.add(question)
                await asyncio.sleep(0)

            raise UnansweredError(ask)
        self.answered += 1
        if self.answered % 7 == 0:  # forgotten after a while
            self._known.discard(question)
        return True

    def may_enter(self, vhost):
        return self._answer("enter", vhost)

    def allows(self, vhost, kind, name, permission):
        return self._answer(kind, name, permission)

    def restricts_topics(self, vhost, exchange):
        return self._answer("restricts", exchange)

    def allows_topic(self, vhost, exchange, key, permission):
        return self._answer("topic", exchange, key)


def test_rights_that_are_asked_for_make_it_wait_and_nothing_is_lost(world, monkeypatch):
    rights = SlowRights("guest")
    of_node = world.batches.of_node
    monkeypatch.setattr(
        Batches, "rights", property(lambda self: of_node.rights(self.vhost, rights))
    )
    for name in ("x", "y"):
        world.exchange(name, "topic" if name == "y" else "direct")
        world.bind("q", name, "k")
    rows = [Row("k", b"%d" % n, "xy"[n // 3 % 2]) for n in range(40)]
    assert world.publish(*rows)["messages"] == 40
    assert world.bodies("q") == [b"%d" % n for n in range(40)]
    assert rights.asked > 10


class KeyRights:
    """Rights to do everything, but for the keys of topic exchanges."""

    tags = ()

    def __init__(self, user, keys):
        self.user, self.keys = user, keys

    def may_enter(self, _):
        return True

    def allows(self, *_):
        return True

    def restricts_topics(self, *_):
        return True

    def allows_topic(self, _, __, key, ___):
        return key in self.keys


def test_a_batch_with_a_key_that_was_withdrawn_delays_no_message(world, monkeypatch):
    rights = KeyRights("guest", {"k", "other"})
    of_node = world.batches.of_node
    monkeypatch.setattr(
        Batches, "rights", property(lambda self: of_node.rights(self.vhost, rights))
    )
    world.exchange("x", "topic")
    world.bind("q", "x", "#")
    late = {"headers": {"x-delay": 1000}}
    world.stage("w", 0, "p", [Row(key, b"m", "x", properties=late) for key in ("k", "other")])
    rights.keys.remove("other")
    for _ in range(3):
        with pytest.raises(ChannelError) as caught:
            world.commit("w", 0, "p")
        assert caught.value.code == 403
    world.node.advance(2)
    assert world.bodies("q") == []


def test_what_falls_due_while_a_batch_is_committed_is_delayed_all_the_same(world, monkeypatch):
    world.declare("full", max_length=0, overflow="reject-publish")
    soon = {"headers": {"x-deliver-at": world.node.now + 5}}
    world.stage("w", 0, "p", [Row("full", b"m", properties=soon), Row("q", b"m")])
    check_routed = BatchCommit._check_routed

    def wait(commit):
        world.node.now += 10
        check_routed(commit)

    monkeypatch.setattr(BatchCommit, "_check_routed", wait)
    assert world.commit("w", 0, "p")["messages"] == 2
    assert world.bodies("q") == [b"m"]
