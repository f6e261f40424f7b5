"""Every record that a queue settles is told to its extensions, whatever it was settled for."""

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from leveret.core.queues.extensions import ExtensionKind, QueueExtension
from leveret.core.settings.queue_settings import QueueSettings
from leveret.ports.ranges import RangeSet
from leveret.ports.records import BatchBuilder
from tests.features.filters.test_filtered import Taker, publish
from tests.support.examples import examples
from tests.support.queue_bench import Bench, Waiter, content_header


class Witness(QueueExtension):
    """Notes what it is told."""

    outlives_reordering = True

    def __init__(self):
        self.told = RangeSet()

    def settled(self, ranges):
        self.told.add_all(list(ranges))


class Witnesses(ExtensionKind):
    def follow(self, queue, present, demand):
        return present or Witness()


class Settlements(RuleBasedStateMachine):
    """One queue, with everything by which a message can end."""

    @initialize(
        priorities=st.booleans(),
        limit=st.sampled_from([None, 5]),
        ttl_ms=st.sampled_from([None, 100]),
    )
    def begin(self, priorities, limit, ttl_ms):
        self.bench = Bench(
            settings=QueueSettings(
                max_priority=2 if priorities else None, max_length=limit, message_ttl_ms=ttl_ms
            ),
            kinds=(Witnesses(),),
        )
        self.queue, self.log = self.bench.queue, self.bench.log
        self.leased = []
        self.transactions = 0

    @rule(tags=st.lists(st.sampled_from("ab"), min_size=1, max_size=4))
    def publish(self, tags):
        publish(self.bench, *tags)

    @rule(commits=st.booleans(), count=st.integers(1, 3))
    def publish_together(self, commits, count):
        records, self.transactions = BatchBuilder(), self.transactions + 1
        flags, header = content_header(1)
        for _ in range(count):
            records.add(flags, self.bench.clock.now, b"", b"q", header, b"x")
        first = self.log.end
        self.queue.take_in(records)
        self.queue.prepare(self.transactions, records, [], lambda _: None, Waiter())
        if commits:
            self.queue.carry_out(self.transactions, [])
        else:
            self.queue.undo(self.transactions, first, self.log.end)

    @rule(count=st.integers(1, 3))
    def get(self, count):
        for _ in range(count):
            found = self.queue.get()
            if found is not None:
                self.leased.append(found[0])

    @rule(data=st.data(), how=st.sampled_from(["settle", "return_", "discard"]))
    def end(self, data, how):
        if self.leased:
            offset = data.draw(st.sampled_from(sorted(self.leased)))
            self.leased.remove(offset)
            getattr(self.queue, how)([(offset, offset + 1)])

    @rule()
    def purge(self):
        self.queue.purge()

    @rule(unmatched=st.sampled_from(["skip", "keep"]))
    def consume(self, unmatched):
        taker = Taker("a", unmatched=unmatched)
        self.queue.add_consumer(taker)
        self.bench.run()
        self.queue.remove_consumer(taker)
        self.leased += taker.offsets

    @rule(milliseconds=st.sampled_from([50, 150]))
    def wait(self, milliseconds):
        self.bench.advance(milliseconds)

    @rule(data=st.data())
    def damage(self, data):
        """Let a batch be unreadable from now on, and be read."""
        bases = sorted({batch.base_offset for batch in self.log.batches})
        if bases:
            self.log.damaged.add(data.draw(st.sampled_from(bases)))
            self.queue.reader.clear()
            taker = Taker()
            self.queue.add_consumer(taker)
            self.bench.run()
            self.queue.remove_consumer(taker)
            self.leased += taker.offsets

    @invariant()
    def extensions_know_what_is_settled(self):
        if hasattr(self, "bench"):
            self.bench.run()
            witness = self.queue.extension(Witness)
            assert list(witness.told) == list(self.log.settled)


Settlements.TestCase.settings = settings(max_examples=examples(150), stateful_step_count=30)
TestSettlements = Settlements.TestCase
