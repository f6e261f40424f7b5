"""A log and its copy, byte for byte, through rolls, removals, cuts, kills and power cuts.

The copy gets what `read_raw` of the log returns, of some size at a time. At any moment its files
are prefixes of the log's; and whoever opens them as a log, as a node does that takes over, finds
what the log has.
"""

import asyncio
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from leveret.ports import Durability
from leveret.ports.records import Batch, BatchBuilder
from leveret.ports.replication import LogPlace, PlaceGoneError
from leveret.storage.batch_walk import BatchWalk
from leveret.storage.commit import FlushFigures
from leveret.storage.replica_files import cut_replica, open_replica
from leveret.storage.replica_log import FileReplicaLog
from leveret.storage.state import MemoryStateStore
from leveret.storage.store import FileTopicStore, StorageLimits
from tests.storage.faulty_files import FaultyFileSystem
from tests.storage.harness import PERSISTENT, FixedClock, NoLock, abandon, bodies, open_log, put
from tests.storage.keys import encrypted_keyring
from tests.storage.test_log_machine import StepCommitter, stepped_threads
from tests.support.examples import examples

DATA = Path("/data")


class Leader:
    """A store with one log, in epoch after epoch."""

    def __init__(self, loop, files, durability, *, encrypted, epoch=1):
        self.loop, self.files, self.durability = loop, files, durability
        self.encrypted, self.epoch = encrypted, epoch
        self.state = MemoryStateStore()
        self.open()

    def open(self):
        self.threads = stepped_threads()
        self.store = FileTopicStore(
            DATA,
            self.files,
            self.state,
            self.loop,
            clock=FixedClock(),
            limits=StorageLimits(
                segment_bytes_max=900,
                tail_cache_bytes_max=600,
                settle_flush_interval_ms=3_600_000,
                open_files_max=2,
            ),
            lock=NoLock(),
            threads=self.threads,
            keyring=encrypted_keyring(self.files, DATA) if self.encrypted else None,
            boot=b"%16d" % 1,
            durability=self.durability,
            epoch=self.epoch,
        )
        self.log = open_log(self.store, self.durability)

    def drain(self):
        self.threads.committer.drain()

    def kill(self):
        self.log.write_settlements()
        abandon(self.store)
        self.files = self.files.lose_process()
        self.epoch += 1
        self.open()


class Copies:
    """A LogSink that notes what it is told."""

    def __init__(self):
        self.removed_files: list[tuple[int, int]] = []
        self.writes = 0

    def wrote(self):
        self.writes += 1

    def removed(self, base, revision):
        self.removed_files.append((base, revision))


class ReplicaMachine(RuleBasedStateMachine):
    """`flushed` are place and offset up to which the copy is on its disk.

    Where the copy `counts`, the log waits for it. Otherwise it may come late, and begin anew.
    """

    @initialize(
        durability=st.sampled_from([Durability.FSYNC, Durability.OS]),
        encrypted=st.booleans(),
        counts=st.booleans(),
    )
    def begin(self, durability, encrypted, counts):
        self.loop = asyncio.new_event_loop()
        self.counts = counts
        durability = Durability.FSYNC if counts else durability
        self.leader = Leader(self.loop, FaultyFileSystem(), durability, encrypted=encrypted)
        self.files = FaultyFileSystem()
        keyring = self.leader.files.files.get(DATA / "keyring.json")
        if keyring is not None:
            self.files.make_directory(DATA)
            self.files.files[DATA / "keyring.json"] = keyring.copy()
            self.files.durable[DATA / "keyring.json"] = keyring.copy()
        self.committer = StepCommitter()
        self.transactions = iter(range(1, 10_000))
        self.prepared: list[int] = []
        self.flushed = LogPlace(), 0
        self.open()
        self.attach()

    def attach(self):
        if self.counts:
            self.sink = Copies()
            self.leader.log.copy_to(self.sink)
            self.leader.log.replicated(*self.flushed)

    def open(self):
        directory = self.leader.log.directory
        self.replica = FileReplicaLog(
            self.files,
            directory,
            self.committer,
            open_replica(self.files, directory, self.flushed[0]),
            FlushFigures(),
        )

    def has_flushed(self, place, offset):
        self.flushed = max(self.flushed, (place, offset))
        if self.counts:
            self.leader.log.replicated(*self.flushed)

    # What happens to the log

    @rule(count=st.integers(1, 5), size=st.integers(0, 300))
    def publish(self, count, size):
        sent = [b"%d" % number + b"x" * size for number in range(count)]
        if sent:
            put(self.leader.log, *sent)

    @rule(data=st.data())
    def settle(self, data):
        log = self.leader.log
        if log.committed:
            first = data.draw(st.integers(0, log.committed - 1))
            log.settle([(first, data.draw(st.integers(first + 1, log.committed)))])

    @rule()
    def settle_all_but_a_few(self):
        log = self.leader.log
        if log.committed > 3:
            log.settle([(0, log.committed - 3)])
            log.write_settlements()

    @rule()
    def write_settlements(self):
        self.leader.log.write_settlements()

    @rule(count=st.integers(0, 3))
    def prepare(self, count):
        records, transaction = BatchBuilder(), next(self.transactions)
        for number in range(count):
            records.add(PERSISTENT, 1_700_000_000_000, b"", b"", b"", b"part %d" % number)
        ranges = [(0, 1)] if self.leader.log.committed else []
        prepared = partial(self.is_prepared, transaction)
        self.leader.log.prepare(transaction, records, ranges, prepared)

    def is_prepared(self, transaction, error):
        assert error is None
        self.prepared.append(transaction)

    @precondition(lambda self: self.prepared)
    @rule(committed=st.booleans())
    def resolve(self, committed):
        self.leader.log.resolve(self.prepared.pop(), committed=committed)

    @rule()
    def flush_the_log(self):
        self.leader.drain()

    @precondition(lambda self: not self.counts)
    @rule()
    def kill_the_leader(self):
        self.leader.kill()
        self.prepared.clear()

    # What happens to the copy

    @rule(bytes_max=st.integers(1, 2000), waits=st.booleans())
    def copy(self, bytes_max, waits=False):
        place = self.replica.place
        try:
            found = self.read(place, bytes_max, waits=waits)
            if not found.data and found.stop != place:  # the file is sealed
                place = found.stop
                found = self.read(place, bytes_max, waits=waits)
        except PlaceGoneError:
            assert not self.counts
            self.begin_anew()
        else:
            if found.data:
                self.replica.append(place, found.data)
                assert self.replica.end.offset == found.offset

    def read(self, place, bytes_max, *, waits):
        log, offset = self.leader.log, self.replica.end.offset
        found = None if waits else log.read_raw(place, offset, bytes_max)
        return found or self.loop.run_until_complete(log.fetch_raw(place, offset, bytes_max))

    def begin_anew(self):
        """Copy from the first file that is left, as a node does that was away for too long."""
        self.replica.close()
        self.committer.drain()
        self.files.remove_tree(self.leader.log.directory)
        self.flushed = LogPlace(), 0
        self.open()
        first = self.leader.log.segments[0]
        place = LogPlace(first.base, first.revision)
        self.replica.append(place, self.read(place, 1, waits=True).data)

    @rule()
    def flush(self):
        flushed = self.replica.place, self.replica.end.offset

        def done(error):
            assert error is None
            self.has_flushed(*flushed)

        if self.replica.place.position:
            self.replica.flush(done)

    @precondition(lambda self: self.committer.waiting)
    @rule()
    def finish_a_flush(self):
        self.committer.step()

    @rule(count=st.integers(0, 5))
    def catch_up(self, count):
        self.publish(count, 100)
        self.leader.drain()
        self.copy_all()
        self.flush()
        self.committer.drain()
        assert not self.counts or self.leader.log.unresolved or self.is_all_committed

    @property
    def is_all_committed(self):
        return self.leader.log.committed == self.leader.log.end

    def copy_all(self):
        while self.replica.place != self.leader.log.place:
            self.copy(700)

    @rule()
    def kill(self):
        before = self.replica
        self.committer.close()
        self.files = self.files.lose_process()
        self.open()
        if self.counts or self.replica.place == before.place:
            assert self.replica.place == before.place
            ends = [
                (end.offset, end.epoch, end.checksum, end.last)
                for end in (self.replica.end, before.end)
            ]
            assert ends[0] == ends[1]
        else:  # files were removed before they were copied: there may have been others
            assert self.flushed[0] <= self.replica.place < before.place
        self.has_flushed(self.replica.place, self.replica.end.offset)

    @rule(kept_bytes=st.integers(0, 400), keeps_names=st.booleans())
    def cut_the_power(self, kept_bytes, keeps_names):
        before = self.replica.place
        self.committer.close()
        self.files = self.files.lose_machine(kept_bytes, keeps_names=keeps_names)
        self.open()
        assert self.flushed[0] <= self.replica.place <= before
        self.has_flushed(self.replica.place, self.replica.end.offset)

    @precondition(lambda self: self.flushed[0] < self.replica.place)
    @rule()
    def cut_the_power_right_behind_a_new_name(self):
        self.cut_the_power(0, keeps_names=True)

    @rule(data=st.data())
    def cut(self, data):
        """Cut it anywhere behind what counts as replicated."""
        self.committer.drain()
        sure = self.flushed[0]
        least = sure if self.counts else LogPlace()
        places = [place for place in self.ends() if place >= least]
        if not places:
            return
        self.replica.close()
        place = data.draw(st.sampled_from(places))
        cut_replica(self.files, self.leader.log.directory, place)
        self.files = self.files.lose_machine()
        self.flushed = min(self.flushed, (place, 0))
        self.open()
        assert min(place, sure) <= self.replica.place <= place
        self.flushed = self.replica.place, self.replica.end.offset

    def ends(self) -> list[LogPlace]:
        """Places at which batches of the copy end."""
        found = []
        for segment in self.replica._end.segments:
            raw, at = bytes(self.files.files[segment.path].cached[: segment.size]), 0
            while at < len(raw):
                at += Batch.parse(raw, at).size
                found.append(LogPlace(segment.base, segment.revision, at))
        return found

    # Taking over

    @rule()
    def take_over_from_a_copy_of_everything(self):
        self.leader.drain()
        self.copy_all()
        with self.taken_over(self.files.lose_process()) as log:
            assert log.end == self.leader.log.end

    @precondition(lambda self: self.counts)
    @rule()
    def take_over_from_what_was_flushed(self):
        with self.taken_over(self.files.lose_machine()) as log:
            assert log.end >= self.leader.log.committed

    @contextmanager
    def taken_over(self, files):
        """Open the copy as a log: what is not settled in the log can be read there, too."""
        leader = self.leader
        other = Leader(
            self.loop,
            files,
            leader.durability,
            encrypted=leader.encrypted,
            epoch=leader.epoch + 1,
        )
        try:
            assert other.store.losses.unacknowledged == []
            yield other.log
            log = leader.log
            wanted = [offset for offset in range(log.committed) if offset not in log.settled]
            for offset in wanted[:2] + wanted[-2:]:
                found = self.loop.run_until_complete(bodies(other.log, offset, offset + 1))
                assert found == self.loop.run_until_complete(bodies(log, offset, offset + 1))
        finally:
            abandon(other.store)

    @invariant()
    def is_a_prefix(self):
        if not hasattr(self, "replica"):
            return
        assert not self.counts or self.leader.log.committed <= self.flushed[1]
        theirs = {one.path: one for one in self.leader.log.segments}
        for segment in self.replica._end.segments:
            mine = self.files.files[segment.path].cached[: segment.size]
            if segment.path in theirs:
                file = self.leader.files.files[segment.path].cached
                assert mine == file[: segment.size]
                assert segment.size <= theirs[segment.path].size
            indexed = segment.read_index(self.files)
            if indexed is not None:
                walk = BatchWalk(bytes(mine), segment.base, 0)
                entries = zip(indexed.index.offsets, indexed.index.positions, strict=True)
                assert list(entries) == walk.entries

    def teardown(self):
        if hasattr(self, "leader"):
            self.committer.close()
            self.replica.close()
            abandon(self.leader.store)
            self.loop.close()


TestReplica = ReplicaMachine.TestCase
TestReplica.settings = settings(
    max_examples=examples(200),
    stateful_step_count=50,
    suppress_health_check=[HealthCheck.filter_too_much, HealthCheck.too_slow],
)
