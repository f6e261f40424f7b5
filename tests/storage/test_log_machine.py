"""A log against a simple model, through failed flushes, restarts, kills and power cuts."""

import asyncio
import errno
import os
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)

from leveret.errors import StorageError
from leveret.ports import Durability, Retention
from leveret.storage.state import MemoryStateStore
from leveret.storage.store import FileTopicStore, StorageLimits
from leveret.storage.threads import StorageThreads
from tests.storage.faulty_files import FaultyFileSystem
from tests.storage.harness import (
    FixedClock,
    NoLock,
    abandon,
    bodies,
    make_flushes_quick,
    open_log,
    put,
)
from tests.support.examples import examples


class StepCommitter:
    """Work is done when the test says so, on the test's thread."""

    def __init__(self):
        self.waiting = deque()

    def submit(self, work, done, *, is_flush=False):
        self.waiting.append((work, done))

    def step(self, failure: OSError | None = None) -> None:
        work, done = self.waiting.popleft()
        if failure is None:
            try:
                work()
            except OSError as error:
                failure = error
        done(failure)

    def drain(self) -> None:
        while self.waiting:
            self.step()

    def close(self) -> None:
        self.waiting.clear()


def stepped_threads() -> StorageThreads:
    """Threads that do nothing before the test says so; those that read run by themselves."""
    return StorageThreads(StepCommitter(), ThreadPoolExecutor(1))


class LogMachine(RuleBasedStateMachine):
    """`written` is what stands in the log, `settled` what was settled of it.

    `returns` are the (returns, failures) of what came back.
    """

    def __init__(self):
        super().__init__()
        self.loop = asyncio.new_event_loop()
        self.files = FaultyFileSystem()
        self.state = MemoryStateStore()
        self.written: list[bytes] = []
        self.settled: set[int] = set()
        self.returns: dict[int, tuple[int, int]] = {}
        self.number = 0
        self.boots = 1

    @initialize(durability=st.sampled_from([Durability.FSYNC, Durability.OS]))
    def start(self, durability):
        self.durability = durability
        self.open()

    def open(self) -> None:
        self.threads = stepped_threads()
        self.store = FileTopicStore(
            Path("/data"),
            self.files,
            self.state,
            self.loop,
            clock=FixedClock(),
            limits=StorageLimits(
                segment_bytes_max=800,
                tail_cache_bytes_max=600,
                settle_flush_interval_ms=3_600_000,
                open_files_max=2,
            ),
            lock=NoLock(),
            threads=self.threads,
            boot=b"%16d" % self.boots,
        )
        self.committer = self.threads.committer
        self.log = open_log(self.store, self.durability)
        self.log.on_failure(self.failed)
        assert self.store.losses.unacknowledged == []

    def failed(self, error) -> None:
        del self.written[self.log.committed :]

    @rule(
        count=st.integers(1, 5),
        flags=st.sampled_from([0, 1]),
        size=st.integers(0, 300),
        may_block=st.booleans(),
    )
    def append(self, count, flags, size, may_block=False):
        self.number += 1
        kind = b"p" if flags else b"t"
        sent = [kind + b"%d-%d" % (self.number, i) + b"x" * size for i in range(count)]
        if may_block:
            self.committer.drain()  # a flush that runs would cover it
            make_flushes_quick(self.store)  # whatever time the last ones took
        base = put(self.log, *sent, flags=flags, may_block=may_block)
        assert base == len(self.written)
        self.written += sent

    @rule(
        error=st.sampled_from([errno.ENOSPC, errno.EIO, 0]),
        after=st.integers(1, 4),
        may_block=st.booleans(),
    )
    def append_while_the_disk_refuses(self, error, after, may_block=False):
        self.files.fail_at, self.files.error = self.files.calls + after, error
        try:
            self.append(2, 1, 100, may_block)
        except StorageError:
            assert self.log.end == len(self.written)
        self.files.fail_at = None

    @precondition(lambda self: self.log.committed > 0)
    @rule(data=st.data())
    def settle(self, data):
        first = data.draw(st.integers(0, self.log.committed - 1))
        stop = data.draw(st.integers(first + 1, self.log.committed))
        self.log.settle([(first, stop)])
        self.log.returns.forget([(first, stop)])
        self.settled |= set(range(first, stop))

    @precondition(lambda self: self.log.committed > 0)
    @rule(data=st.data(), failures=st.integers(0, 1))
    def come_back(self, data, failures):
        first = data.draw(st.integers(0, self.log.committed - 1))
        stop = data.draw(st.integers(first + 1, self.log.committed))
        for offset in set(range(first, stop)) - self.settled:
            before = self.returns.get(offset, (0, 0))
            self.returns[offset] = before[0] + 1, before[1] + failures
            self.log.returns.put(offset, offset + 1, *self.returns[offset])
        self.log.note_returns([(first, stop)])

    @rule(bytes_max=st.integers(0, 3000))
    def retain(self, bytes_max):
        self.log.retention = Retention(bytes_max=bytes_max)
        self.log.retention = None
        segments, settled = self.log._segments.items, self.log.settled
        kept = [one for one in segments if not settled.contains(one.base, one.stop)]
        taken = self.settlements() - self.settled
        assert not taken or max(taken) < segments[-1].base
        if self.log.committed == self.log.end:
            assert sum(one.size for one in kept) <= bytes_max or kept[-1] is segments[-1]
        self.settled |= taken

    @rule()
    def write_settlements(self):
        self.log.write_settlements()

    @rule()
    def mark_how_far_it_has_come(self):
        self.store._notes.look()

    @precondition(lambda self: self.committer.waiting)
    @rule()
    def finish_a_flush(self):
        self.committer.step()

    @precondition(lambda self: self.committer.waiting)
    @rule()
    def fail_a_flush(self):
        self.committer.step(OSError(errno.EIO, os.strerror(errno.EIO)))

    @precondition(lambda self: self.durability is Durability.FSYNC)
    @rule(fails_again=st.booleans())
    def fail_a_flush_on_the_loop(self, fails_again):
        self.append(1, 1, 0)
        self.committer.drain()  # now the last segment has been flushed before
        self.files.error, flush = errno.EIO, self.files.fdatasync

        def refuse(handle):
            self.files.fail_at = self.files.calls + 1
            flush(handle)

        self.files.fdatasync = refuse
        self.append(2, 1, 10, may_block=True)
        assert self.log.is_flushing == (self.log.committed < self.log.end)
        self.loop.run_until_complete(asyncio.sleep(0))
        if not fails_again:
            del self.files.fdatasync
        self.committer.drain()
        self.files.fail_at = None
        self.files.__dict__.pop("fdatasync", None)

    @rule()
    def let_all_finish(self):
        self.committer.drain()
        assert self.log.committed == self.log.end

    @rule()
    def close_and_open(self):
        self.log.write_settlements()
        self.committer.drain()
        closing = self.loop.create_future()

        async def close():
            await self.store.close()
            closing.set_result(None)

        async def both():
            # The flushes that closing asks for are done while it waits for them.
            async with asyncio.TaskGroup() as group:
                group.create_task(close())
                while not closing.done():
                    self.committer.drain()
                    await asyncio.sleep(0)

        self.loop.run_until_complete(both())
        assert not self.files.handles
        self.open()
        self.check_returns()
        assert not self.log.unclean
        assert self.log.end == len(self.written)
        assert self.settlements() == self.settled

    @rule()
    def kill_and_open(self):
        self.log.write_settlements()
        abandon(self.store)
        self.files = self.files.lose_process()
        self.open()
        self.check_returns()
        assert self.log.end == len(self.written)
        assert self.settlements() == self.settled

    @precondition(lambda self: self.durability is Durability.FSYNC)
    @rule(kept_bytes=st.integers(0, 400), keeps_names=st.booleans(), may_block=st.booleans())
    def cut_the_power_and_open(self, kept_bytes, keeps_names=False, may_block=False):
        self.log.write_settlements()
        self.append(1, 1, 10, may_block)
        self.committer.drain()
        sure = len(self.written)
        self.append(2, 1, 50)
        abandon(self.store)
        self.files = self.files.lose_machine(kept_bytes, keeps_names=keeps_names)
        self.boots += 1
        self.open()
        assert sure <= self.log.end <= len(self.written)
        del self.written[self.log.end :]
        # Transient records that a failed flush has lost count as settled.
        lost = self.settlements() - self.settled
        assert all(self.written[offset].startswith(b"t") for offset in lost)
        assert self.settled <= self.settlements()
        self.settled |= lost
        self.check_returns()

    def check_returns(self):
        """Check that returns of messages that are still there are known again."""
        self.returns = {o: counts for o, counts in self.returns.items() if o not in self.settled}
        found = self.log.returns
        known = {o: (count, found.failures.get(o, 0)) for o, count in found.acquired.items()}
        assert known == self.returns

    def settlements(self) -> set[int]:
        return {offset for first, stop in self.log.settled for offset in range(first, stop)}

    @invariant()
    def holds(self):
        if not hasattr(self, "log"):
            return
        assert self.log.end == len(self.written)
        assert self.log.first <= self.log.committed <= self.log.end
        assert self.settlements() == self.settled
        wanted = [i for i in range(self.log.committed) if i not in self.settled]
        for offset in {*wanted[:2], *wanted[len(wanted) // 2 :][:2], *wanted[-2:]}:
            found = self.loop.run_until_complete(bodies(self.log, offset, offset + 1))
            assert found == {offset: self.written[offset]}

    def teardown(self):
        if hasattr(self, "store"):
            abandon(self.store)
        self.loop.close()


TestLog = LogMachine.TestCase
TestLog.settings = settings(
    max_examples=examples(60),
    stateful_step_count=40,
    suppress_health_check=list(HealthCheck),
)


def test_what_a_failed_flush_lost_is_no_loss_at_the_start_after_next():
    """The first start says that it was not flushed; the second must know that from the log."""
    machine = LogMachine()
    machine.start(Durability.FSYNC)
    for kept_bytes in (0, 0, 0, 244):
        machine.cut_the_power_and_open(kept_bytes)
    machine.kill_and_open()
    machine.kill_and_open()
    machine.append(1, 0, 0)
    machine.append_while_the_disk_refuses(errno.ENOSPC, 3)
    machine.fail_a_flush()
    machine.cut_the_power_and_open(0)
    machine.kill_and_open()
    machine.holds()
    machine.teardown()


def test_a_segment_stays_until_a_later_checkpoint_is_flushed():
    machine = LogMachine()
    machine.start(Durability.FSYNC)
    log, committer = machine.log, machine.committer
    put(log, b"stuck", b"x" * 900)
    committer.drain()
    put(log, b"in the second segment", b"x" * 300)
    log.settle([(1, 2)])  # told by the second segment alone
    log.write_settlements()
    put(log, b"x" * 500)
    committer.drain()
    put(log, b"in the third segment")
    committed = log.committed
    log.settle([(2, committed)])
    log.write_settlements()
    flush = committer.waiting.popleft()
    committer.drain()
    assert [segment.base for segment in log._segments.items] == [0, 2, 5]
    committer.waiting.append(flush)
    committer.drain()
    assert [segment.base for segment in log._segments.items] == [0, 5]
    machine.teardown()
