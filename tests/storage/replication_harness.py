"""Two copies of a log, each in a store of its own on a file system in memory.

One of them leads and the other follows, by the machines of `leveret.cluster`; both are in sync all
the time. Nothing waits: a test says when a flush ends and when a follower fetches.
"""

from __future__ import annotations

import asyncio
from itertools import count
from pathlib import Path
from random import Random

from leveret.cluster.partition_state import Member, PartitionState
from leveret.cluster.replication.follower import FollowerReplica
from leveret.cluster.replication.leader import LeaderReplica, ReplicationLimits
from leveret.cluster.replication.messages import Records
from leveret.cluster.transactions.numbers import is_of_cluster
from leveret.ports import Durability, Retention
from leveret.ports.records import BatchBuilder
from leveret.storage.state import MemoryStateStore
from leveret.storage.store import StorageLimits
from tests.storage.faulty_files import FaultyFileSystem
from tests.storage.harness import PERSISTENT, FixedClock, NoLock, abandon, bodies
from tests.storage.keys import encrypted_keyring
from tests.storage.test_log_machine import SteppedStore

DATA = Path("/data")
NOW_MS = 1_700_000_000_000


class SharedDecisions:
    """Decisions about transactions as all nodes know them; forgotten once a log knows them."""

    def __init__(self) -> None:
        self.committed: set[int] = set()

    def open(self, log, found) -> None:
        pass

    def all_open(self) -> None:
        pass

    def is_elsewhere(self, transaction: int) -> bool:
        return is_of_cluster(transaction)

    def asked(self, transaction: int) -> bool:
        return transaction in self.committed

    def remembered(self, transaction: int) -> None:
        self.committed.discard(transaction)


class ReplicaStore(SteppedStore):
    """A store without threads, whose decisions are those of the cluster."""

    decisions: SharedDecisions

    def _make_services(self, clock):
        self._decisions = self.decisions
        return super()._make_services(clock)


class Replica:
    """A node with one log. Each start opens it anew."""

    def __init__(self, pair: Pair, number: int) -> None:
        self.pair = pair
        self.number = number
        self.files = FaultyFileSystem()
        self.state = MemoryStateStore()
        self.boots = 1
        self.leader: LeaderReplica | None = None
        self.follower: FollowerReplica | None = None
        self.start()

    def start(self) -> None:
        pair = self.pair
        store = type("Store", (ReplicaStore,), {"decisions": pair.decisions})
        self.store = store(
            DATA,
            self.files,
            self.state,
            pair.loop,
            clock=FixedClock(),
            limits=StorageLimits(
                segment_bytes_max=700,
                tail_cache_bytes_max=600,
                settle_flush_interval_ms=3_600_000,
                settle_sync_interval_ms=3_600_000,
                commit_threads=1,
                open_files_max=2,
            ),
            lock=NoLock(),
            keyring=encrypted_keyring(self.files, DATA) if pair.is_encrypted else None,
            durability=pair.durability,
            boot=b"boot %11d" % self.boots,
        )
        self.committer = self.store._committer
        self.open()

    def open(self) -> None:
        pair = self.pair
        self.log = self.store.open(
            "/", "orders", "i1", 0, pair.durability, retention=pair.retention, has_replicas=True
        )

    def stop(self, *, kept_bytes: int | None = None) -> None:
        """End the process, or, if `kept_bytes` may be left of what was not flushed, the machine."""
        abandon(self.store)
        self.leader = self.follower = None
        if kept_bytes is None:
            self.files = self.files.lose_process()
        else:
            self.files = self.files.lose_machine(kept_bytes)
            self.boots += 1

    def mend(self) -> bool:
        """Open the log again if it has failed."""
        if self.log.failure is None:
            return False
        self.stop()
        self.start()
        return True

    @property
    def member(self) -> Member:
        return Member(self.number, 0)

    def records(self) -> dict[int, bytes]:
        """Return offset and body of the unsettled records."""
        log, found = self.log, {}
        for first, stop in log.settled.gaps(0, log.end):
            offset = first
            while offset < stop:
                batches = self.pair.loop.run_until_complete(log._reader.fetch(offset, log.end, 1))
                found.update(
                    (record[0], record[6])
                    for record in batches[0].records()
                    if record[0] not in log.settled
                )
                offset = batches[0].stop_offset
        return found


class Pair:
    """A leader and a follower; `confirmed` are the bodies that were committed, by offset."""

    def __init__(
        self,
        durability: Durability,
        *,
        retention: Retention | None = None,
        is_encrypted: bool = False,
    ) -> None:
        self.loop = asyncio.new_event_loop()
        self.durability = durability
        self.retention = retention
        self.is_encrypted = is_encrypted
        self.decisions = SharedDecisions()
        self.epoch = 0
        self.transactions = count(1)
        self.confirmed: dict[int, bytes] = {}
        self.replicas = [Replica(self, number) for number in range(2)]
        self.elect(0)

    @property
    def leader(self) -> Replica:
        return next(each for each in self.replicas if each.leader is not None)

    @property
    def follower(self) -> Replica:
        return next(each for each in self.replicas if each.leader is None)

    def elect(self, number: int) -> None:
        """Let a replica lead the next epoch, and the other one follow it."""
        for each in self.replicas:
            each.mend()
        self.epoch += 1
        self._seen = 0  # below which records are in `confirmed`
        members = frozenset(each.member for each in self.replicas)
        state = PartitionState((0, 1), members, number, 1, self.epoch, self.epoch)
        for each in self.replicas:
            each.leader = each.follower = None
            log = each.log
            if each.number != number:
                log.follow()
                continue
            log.lead(self.epoch)
            each.leader = LeaderReplica(
                each.member,
                state,
                log.epochs,
                end=log.end,
                durable=log.durable,
                committed=log.committed,
                limits=ReplicationLimits(in_sync_min=2),
                now_ms=0,
            )
        self.follow()

    def follow(self) -> None:
        """Let the other replica follow."""
        each = self.follower
        each.log.follow()
        each.follower = FollowerReplica(
            each.member, self.epoch, each.log.epochs, each.log.committed
        )

    def fetch(self, bytes_max: int = 1000, *, is_lost: bool = False) -> int:
        """Let the follower fetch once. Returns how many bytes came; -1 after a truncation."""
        ours, theirs = self.leader, self.follower
        if theirs.mend():
            self.follow()
        log, machine = theirs.log, theirs.follower
        assert ours.leader is not None
        assert machine is not None
        request = machine.fetch(log.end, log.durable, log.stream_durable)
        answer = ours.leader.fetch(request, 0)
        self.advance()
        run = None
        if isinstance(answer, Records):
            reading = ours.log.read_stream(request.end, log.stream_position, bytes_max)
            run = self.loop.run_until_complete(reading)
        if is_lost:
            return 0
        step = machine.take(answer, log.end)
        if step.truncate_to is not None:
            self.loop.run_until_complete(self._truncate(theirs, step.truncate_to))
            return -1
        assert run is not None
        log.append_stream(run, self.epoch)
        assert isinstance(answer, Records)
        log.limit_commit(machine.appended(answer, log.end))
        return len(run.data)

    async def _truncate(self, each: Replica, end: int) -> None:
        """Truncate, and end the flushes for which that waits."""
        async with asyncio.TaskGroup() as group:
            truncating = group.create_task(each.log.truncate(end))
            while not truncating.done():
                await asyncio.sleep(0)
                each.committer.drain()

    def advance(self) -> None:
        """Commit what both have."""
        leader = self.leader
        assert leader.leader is not None
        log, machine = leader.log, leader.leader
        log.limit_commit(machine.written(log.end, log.durable, log.stream_durable))
        log.replicated_to(machine.replicated)
        for first, stop in log.settled.gaps(self._seen, log.committed):
            for at, body in self.loop.run_until_complete(bodies(log, first, stop)).items():
                assert self.confirmed.setdefault(at, body) == body, f"two records at offset {at}"
        self._seen = log.committed

    def put(self, *sent: bytes) -> int:
        log = self.leader.log
        for body in sent:
            log.builder.add(PERSISTENT, NOW_MS, b"x", b"key", b"header", body)
        return log.append()

    def prepare(self, sent: list[bytes], ranges: list[tuple[int, int]]) -> tuple[int, list]:
        """Write a part of a transaction; returns its id, and what `prepared` was called with."""
        transaction, told = next(self.transactions), []
        records = BatchBuilder()
        for body in sent:
            records.add(PERSISTENT, NOW_MS, b"x", b"key", b"header", body)
        self.leader.log.prepare(transaction, records, ranges, told.append)
        return transaction, told

    def work(self) -> None:
        """End all flushes."""
        for each in self.replicas:
            each.committer.drain()
        self.advance()

    def quiesce(self) -> None:
        """Let the follower have everything."""
        for _ in range(1000):
            self.leader.log.write_settlements()
            self.follower.log.write_settlements()
            for each in self.replicas:
                each.log.flush()
            self.work()
            if (
                self.fetch() == 0
                and self.follower.log.stream_position == self.leader.log.stream_end
            ):
                self.work()
                self.fetch()
                self.advance()
                return
        raise AssertionError("the follower never has everything")

    def check_equal(self) -> None:
        """Check that both have the same, as far as anybody may see it."""
        ours, theirs = self.leader.log, self.follower.log
        assert ours.end == theirs.end
        assert ours.epochs.last == theirs.epochs.last
        # What a follower has settled as an earlier leader may have been too new for this one.
        assert all(theirs.settled.contains(*each) for each in ours.settled)
        unsettled = theirs.settled.gaps(0, ours.end)
        assert ours.committed == theirs.committed
        if self.epoch == 1:  # counts that an earlier leader could not tell anybody may come back
            assert list(ours.returns.runs(unsettled)) == list(theirs.returns.runs(unsettled))
        assert ours._unresolved.keys() == theirs._unresolved.keys()
        for transaction, part in ours._unresolved.items():
            assert list(part.settles) == list(theirs._unresolved[transaction].settles)
        found = self.leader.records()
        assert self.follower.records() == {
            offset: found[offset] for offset in found if offset not in theirs.settled
        }

    def end(self) -> None:
        for each in self.replicas:
            abandon(each.store)
        self.loop.close()


def drawn_bodies(draw: Random, number: int) -> list[bytes]:
    size = draw.choice([0, 20, 200])
    return [b"%d-%d" % (number, each) + b"x" * size for each in range(draw.choice([1, 1, 3]))]
