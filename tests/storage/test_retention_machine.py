"""Two weeks and more of a log with retention, while the clock steps back and forth.

What may go is said by a naive model, which looks at each record by itself; what must go is seen at
the end, when everything is settled, nobody waits, and enough time has passed.
"""

import asyncio
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from leveret.ports import Durability, Retention
from leveret.storage.state import MemoryStateStore
from leveret.storage.store import FileTopicStore, StorageLimits
from tests.storage.faulty_files import FaultyFileSystem
from tests.storage.harness import PERSISTENT, FixedClock, NoLock, abandon, bodies, open_log
from tests.storage.test_log_machine import stepped_threads
from tests.support.examples import examples

HOUR_MS = 3_600_000
DAY_MS = 24 * HOUR_MS
AGE_MS = 14 * DAY_MS
KEEPS = Retention(age_ms_max=AGE_MS, keeps_settled=True)
TAKES = Retention(age_ms_max=AGE_MS)


class RetentionMachine(RuleBasedStateMachine):
    """`times` are when records were stored, `settled` what consumers have settled.

    `may_go` are the records that retention was free to let go of at some moment so far.
    """

    def __init__(self):
        super().__init__()
        self.loop = asyncio.new_event_loop()
        self.files = FaultyFileSystem()
        self.state = MemoryStateStore()
        self.clock = FixedClock()
        self.times: list[int] = []
        self.settled: set[int] = set()
        self.may_go: set[int] = set()
        self.waits_at: int | None = None

    @initialize(retention=st.sampled_from([KEEPS, TAKES]))
    def start(self, retention):
        self.retention = retention
        self.open()

    def open(self) -> None:
        self.threads = stepped_threads()
        self.store = FileTopicStore(
            Path("/data"),
            self.files,
            self.state,
            self.loop,
            clock=self.clock,
            limits=StorageLimits(segment_bytes_max=1500, settle_flush_interval_ms=HOUR_MS),
            lock=NoLock(),
            threads=self.threads,
            boot=b"one boot        ",
        )
        self.log = open_log(self.store, Durability.OS, retention=self.retention)
        self.log.retention_waits_at = lambda: self.waits_at

    @rule(count=st.integers(1, 6))
    def publish(self, count):
        for _ in range(count):
            now = self.clock.now_ms
            self.log.builder.add(
                PERSISTENT, now, b"", b"", b"", b"%d" % len(self.times) + b"." * 90
            )
            self.times.append(now)
            self.log.append()
        self.look()

    @rule(hours=st.integers(1, 100))
    def let_time_pass(self, hours):
        self.clock.now_ms += hours * HOUR_MS
        self.look()

    @rule(hours=st.integers(-200, 200))
    def set_the_clock(self, hours):
        self.clock.now_ms += hours * HOUR_MS
        self.look()

    @precondition(lambda self: self.retention is KEEPS and self.times)
    @rule(data=st.data())
    def settle(self, data):
        first = data.draw(st.integers(0, len(self.times) - 1))
        stop = data.draw(st.integers(first + 1, len(self.times)))
        self.log.settle([(first, stop)])
        self.settled |= set(range(first, stop))
        self.look()

    @rule(data=st.data())
    def wait_for_a_reader(self, data):
        self.waits_at = data.draw(st.none() | st.integers(0, len(self.times)))
        self.look()

    @rule()
    def check(self):
        self.look()
        self.log.check_retention()
        self.log.write_settlements()
        self.threads.committer.drain()

    @rule(cleanly=st.booleans())
    def restart(self, cleanly):
        self.log.write_settlements()
        self.threads.committer.drain()
        if cleanly:
            self.close()
        else:
            abandon(self.store)
            self.files = self.files.lose_process()
        # A clock that was set back is right again, or older records are not known to be younger.
        self.clock.now_ms = max([self.clock.now_ms, *self.times])
        self.open()
        assert self.log.end == len(self.times)

    def close(self) -> None:
        async def both():
            async with asyncio.TaskGroup() as group:
                closing = group.create_task(self.store.close())
                while not closing.done():
                    self.threads.committer.drain()
                    await asyncio.sleep(0)

        self.loop.run_until_complete(both())

    def look(self) -> None:
        """Note what may be let go of from now on."""
        now = self.clock.now_ms
        for offset, time_ms in enumerate(self.times):
            if self.retention is KEEPS and offset not in self.settled:
                continue
            waits = self.waits_at is not None and offset >= self.waits_at
            if time_ms < now - (2 * AGE_MS if waits else AGE_MS):
                self.may_go.add(offset)

    @invariant()
    def nothing_goes_too_early(self):
        if not hasattr(self, "log"):
            return
        gone = {offset for first, stop in self.log.removed for offset in range(first, stop)}
        if self.retention is TAKES:
            gone |= {offset for first, stop in self.log.settled for offset in range(first, stop)}
        assert gone <= self.may_go
        left = sorted(set(range(len(self.times))) - gone)
        for offset in {*left[:2], *left[len(left) // 2 :][:2], *left[-2:]}:
            found = self.loop.run_until_complete(bodies(self.log, offset, offset + 1))
            assert found[offset].startswith(b"%d." % offset)

    def teardown(self):
        if hasattr(self, "store"):
            self.ends_empty()
            abandon(self.store)
        self.loop.close()

    def ends_empty(self):
        self.waits_at = None
        if self.retention is KEEPS and self.times:
            self.log.settle([(0, len(self.times))])
            self.settled = set(range(len(self.times)))
        self.clock.now_ms = max([self.clock.now_ms, *self.times])
        for _ in range(3):  # it is sealed; it is too old; its successor is durable
            self.clock.now_ms += AGE_MS + DAY_MS
            self.look()
            self.check()
        assert self.log.first == self.log.end == len(self.times)


TestRetention = RetentionMachine.TestCase
TestRetention.settings = settings(
    max_examples=examples(60),
    stateful_step_count=40,
    suppress_health_check=list(HealthCheck),
)


@pytest.mark.parametrize("restarts", [False, True])
def test_a_segment_is_as_old_as_its_youngest_record_though_the_clock_was_set_back(restarts):
    machine = RetentionMachine()
    machine.start(TAKES)
    machine.let_time_pass(100)
    machine.let_time_pass(100)
    machine.publish(5)
    if restarts:
        machine.restart(cleanly=True)
    machine.set_the_clock(-200)
    for _ in range(5):
        machine.publish(5)  # seals the first segment
    machine.clock.now_ms += AGE_MS + HOUR_MS
    machine.check()
    machine.check()
    machine.nothing_goes_too_early()
    assert machine.log.first == 0
    abandon(machine.store)
    machine.loop.close()


@pytest.mark.parametrize(
    ("limits", "kept"),
    [
        (Retention(records_max=25, keeps_settled=True), 25),
        (Retention(bytes_max=4000, keeps_settled=True), 15),
        (Retention(records_max=25), 25),
    ],
)
def test_counts_and_bytes_limit_what_is_kept(limits, kept):
    machine = RetentionMachine()
    machine.start(limits)
    machine.may_go = set(range(1000))
    for _ in range(20):
        machine.publish(5)
    if limits.keeps_settled:
        machine.log.settle([(0, 100)])
    machine.check()
    machine.check()
    assert kept <= machine.log.end - machine.log.first <= kept + 15
    abandon(machine.store)
    machine.loop.close()


def test_unsettled_records_keep_their_segment_only():
    machine = RetentionMachine()
    machine.start(KEEPS)
    for _ in range(20):
        machine.publish(5)
        machine.clock.now_ms += DAY_MS
    machine.log.settle([(0, 3), (4, 100)])
    machine.clock.now_ms += 2 * AGE_MS
    machine.check()
    machine.check()
    machine.publish(1)
    assert machine.log.first == 0
    [(first, stop)] = machine.log.removed
    assert 4 <= first < 15
    assert 90 < stop <= 100
    abandon(machine.store)
    machine.loop.close()
