"""A compacted log against a naive model, through deaths at every call of the file system.

The model is a list of all that was ever written. What a reader gets must be a part of it with the
same offsets and times, in which the latest value of each key is, whatever dies when.
"""

import errno

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)

from leveret.ports import Compaction, Durability, Retention
from leveret.ports.records import BatchBuilder
from leveret.storage.compaction import is_clean
from tests.storage.atomic_harness import Died
from tests.storage.compaction_harness import COMPACTS, DELAY_MS, HOUR_MS, CompactedLog
from tests.storage.harness import PERSISTENT, keyed
from tests.support.examples import examples

KEYS = st.none() | st.integers(0, 4) | st.integers(0, 30)
BODIES = st.sampled_from([b"", b"v", b"v" * 100])
RECORDS = st.lists(st.tuples(KEYS, BODIES), min_size=1, max_size=5)
LIMITED = Retention(bytes_max=4000, compaction=Compaction(DELAY_MS))


class CompactionMachine(RuleBasedStateMachine):
    """`written` are (key, body, time) by offset, None where a transaction was aborted.

    `superseded_at` says when a record was first seen to be gone.
    """

    def __init__(self):
        super().__init__()
        self.written: list[tuple[bytes | None, bytes, int] | None] = []
        self.gone_at: dict[int, int] = {}
        self.transaction = 0
        self.pending: dict[int, tuple[int, list]] = {}

    @initialize(
        retention=st.sampled_from([COMPACTS, COMPACTS, LIMITED]),
        durability=st.sampled_from([Durability.FSYNC, Durability.OS]),
        encrypted=st.booleans(),
        map_bytes=st.sampled_from([0, 1 << 20]),
    )
    def start(self, retention, durability, encrypted, map_bytes):
        self.limited = retention is LIMITED
        self.it = CompactedLog(
            retention, durability, encrypted=encrypted, compaction_map_bytes_max=map_bytes
        )

    def entries(self, records):
        now = self.it.clock.now_ms
        return [
            (None if key is None else b"%d" % key, body and b"%d." % len(self.written) + body, now)
            for key, body in records
        ]

    @rule(records=RECORDS)
    def publish(self, records):
        new = self.entries(records)
        assert self.it.put(*((key, body) for key, body, _ in new)) == len(self.written)
        self.written += new

    @rule(first=st.integers(0, 20))
    def publish_for_many_keys(self, first):
        for key in range(first, first + 15):
            self.publish([(key, b"v" * 20)])

    @rule(records=RECORDS)
    def prepare(self, records):
        self.transaction += 1
        builder, new = BatchBuilder(), self.entries(records)
        for key, body, now in new:
            builder.add(PERSISTENT, now, b"x", b"rk", keyed(key), body)
        self.pending[self.transaction] = (len(self.written), new)
        self.it.log.prepare(self.transaction, builder, [], lambda error: None)
        self.it.committer.drain()
        self.written += new

    @precondition(lambda self: self.pending)
    @rule(data=st.data(), committed=st.booleans())
    def resolve(self, data, committed):
        transaction = data.draw(st.sampled_from(sorted(self.pending)))
        decided = []
        if committed:
            self.it.store.decide({transaction: [self.it.log]}, decided.append)
            self.it.committer.drain()
            assert decided == [None]
        self.it.log.resolve(transaction, committed=committed)
        first, new = self.pending.pop(transaction)
        if not committed:
            self.written[first : first + len(new)] = [None] * len(new)

    @rule()
    def settle_down(self):
        self.it.settle_down()

    @rule()
    def roll(self):
        self.it.roll()

    @precondition(lambda self: not self.it.worker.waiting)
    @rule(hours=st.integers(1, 30))
    def let_time_pass(self, hours):
        self.it.clock.now_ms += hours * HOUR_MS

    @precondition(lambda self: not self.it.worker.waiting)
    @rule()
    def begin(self):
        self.it.begin()

    @precondition(lambda self: self.it.worker.waiting)
    @rule()
    def step(self):
        self.it.worker.step()

    @rule()
    def compact(self):
        self.it.compact()

    @rule()
    def check(self):
        self.it.store._check_retention()

    @rule(after=st.integers(1, 12), error=st.sampled_from([errno.ENOSPC, errno.EIO, 0]))
    def compact_while_the_disk_refuses(self, after, error):
        self.it.settle_down()
        files = self.it.files
        files.fail_at, files.error = files.calls + after, error
        self.it.begin()
        self.it.worker.drain()
        files.fail_at = None
        self.it.settle_down()

    @rule(after=st.integers(1, 25), power=st.booleans(), kept_bytes=st.integers(0, 300))
    def die_while_compacting(self, after, power, kept_bytes):
        self.it.settle_down()
        files = self.it.files
        files.dies_at = files.calls + after
        self.it.begin()
        try:
            while self.it.worker.waiting:
                self.it.worker.step()
                self.it.settle_down()
        except Died:
            pass
        files.dies_at = None
        self.die(power, kept_bytes)

    @rule(
        power=st.booleans(),
        kept_bytes=st.integers(0, 300),
        without=st.sampled_from(["", ".index"]),
    )
    def die(self, power, kept_bytes, without=""):
        self.it.committer.drain()
        self.it.die(
            power=power and self.it.durability is Durability.FSYNC,
            kept_bytes=kept_bytes,
            without=without,
        )
        for first, new in self.pending.values():
            self.written[first : first + len(new)] = [None] * len(new)
        self.pending.clear()
        assert self.it.log.end == len(self.written)

    @precondition(lambda self: not self.pending)
    @rule()
    def restart(self):
        self.it.restart()
        assert self.it.log.end == len(self.written)

    # -- what holds

    def there(self, stop: int) -> dict[int, tuple[bytes | None, bytes, int]]:
        written = enumerate(self.written[:stop])
        return {offset: record for offset, record in written if record is not None}

    @invariant()
    def holds(self):
        if not hasattr(self, "it"):
            return
        log = self.it.log
        assert self.it.store.losses.unacknowledged == []
        assert log.end == len(self.written)
        assert log._stated.count <= log.settled.count
        found = self.it.loop.run_until_complete(self.it._read(0))
        offsets = [offset for offset, _, _ in found]
        assert offsets == sorted(set(offsets))
        there = self.there(log.committed)
        for offset, time_ms, body in found:
            assert there[offset][1:] == (body, time_ms)
        kept_from = 0
        if self.limited and log.settled.first == 0:
            kept_from = next(iter(log.settled))[1]  # by retention, some of it perhaps by compaction
        self.nothing_is_missing(there, set(offsets), kept_from)

    def nothing_is_missing(self, there, found, kept_from):
        now = self.it.clock.now_ms
        active = self.it.log._segments.items[-1].base if self.it.log._segments.items else 0
        latest = {key: offset for offset, (key, _, _) in there.items() if key is not None}
        for offset, (key, body, _) in there.items():
            if offset in found or offset < kept_from:
                continue
            self.gone_at.setdefault(offset, now)
            assert offset < active
            assert key is not None
            if latest[key] == offset:
                assert not body
                earlier = [at for at, (its, _, _) in there.items() if its == key and at < offset]
                assert not found & set(earlier)
                assert all(now >= self.gone_at.get(at, 0) + DELAY_MS for at in earlier)

    def teardown(self):
        if not hasattr(self, "it"):
            return
        try:
            self.ends_compacted()
        finally:
            self.it.close()

    def ends_compacted(self):
        """Check that what is left of sealed segments is one record of each key."""
        for transaction in sorted(self.pending):
            self.it.log.resolve(transaction, committed=False)
            first, new = self.pending.pop(transaction)
            self.written[first : first + len(new)] = [None] * len(new)
        self.it.worker.drain()
        self.roll_and_compact()
        self.holds()
        self.it.clock.now_ms += DELAY_MS
        self.roll_and_compact()
        self.holds()
        if self.limited:
            return
        there = self.there(len(self.written))
        latest = {key: offset for offset, (key, _, _) in there.items() if key is not None}
        expected = {
            offset: body
            for offset, (key, body, _) in there.items()
            if key is None or (latest[key] == offset and body)
        }
        assert self.it.read() == expected
        assert not [name for name in self.it.files.files if name.name.endswith(".new")]

    def roll_and_compact(self):
        self.it.settle_down()
        self.it.roll()
        for _ in range(400):  # a small map takes many passes
            self.it.compact()
            if all(is_clean(self.it.log, each) for each in self.it.log.compactable()):
                break
        else:
            raise AssertionError("it does not get ahead")


TestCompaction = CompactionMachine.TestCase
TestCompaction.settings = settings(
    max_examples=examples(60),
    stateful_step_count=40,
    suppress_health_check=list(HealthCheck),
)
