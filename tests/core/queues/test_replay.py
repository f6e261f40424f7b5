"""A queue's state depends on its commands alone: told the same, another one becomes the same."""

from dataclasses import replace

from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from leveret.core.settings.queue_settings import Overflow, QueueSettings, RetryDelay
from leveret.errors import StorageError
from leveret.ports import Durability
from tests.core.queues.test_stream import StreamMachine
from tests.support import queue_bench
from tests.support.command_log import (
    contents_of_queue,
    contents_of_stream,
    recorded_states,
)
from tests.support.examples import examples

QUORUM = QueueSettings(
    max_priority=31,
    default_priority=4,
    returns_first=True,
    delivery_limit=2,
    counts_deliveries=True,
)
KINDS = {
    "classic": QueueSettings(),
    "with a delivery limit": QueueSettings(delivery_limit=1, counts_deliveries=True),
    "quorum": QUORUM,
    "quorum with retry delays": replace(QUORUM, retry_delay=RetryDelay(True, False, 300, 900)),
    "quorum with a single active consumer": replace(
        QUORUM, single_active=True, single_active_by_priority=True
    ),
    "priorities": QueueSettings(max_priority=5),
    "message groups": QueueSettings(group_ordering=True),
    "single active consumer": QueueSettings(single_active=True),
    "limited bytes": QueueSettings(max_length_bytes=40, max_length=9),
    "limited, rejecting": QueueSettings(max_length_bytes=40, overflow=Overflow.REJECT_PUBLISH),
    "limited lifetime": QueueSettings(message_ttl_ms=500),
}


class RecordedQueue(RuleBasedStateMachine):
    """A queue in use, whose state is replayed from its commands after each step."""

    @initialize(kind=st.sampled_from(sorted(KINDS)), durability=st.sampled_from(Durability))
    def open(self, kind, durability):
        with recorded_states():
            self.bench = queue_bench.Bench(durability, KINDS[kind])
        self.consumers = []

    @property
    def state(self):
        return self.bench.queue.state

    @rule(
        count=st.integers(1, 6),
        size=st.sampled_from([0, 3, 30]),
        priority=st.sampled_from([None, None, 0, 5, 40]),
        group=st.sampled_from([None, None, "a", "b"]),
        expiration=st.sampled_from([None, None, None, "200"]),
        commits=st.sampled_from([True, True, False]),
    )
    def publish(self, count, size, priority, group, expiration, commits):
        properties = {"priority": priority, "expiration": expiration}
        if group is not None:
            properties["headers"] = {"x-message-group": group}
        known = {key: value for key, value in properties.items() if value is not None}
        self.bench.store(count, size, **known)
        if commits:
            self.bench.log.commit()
        self.bench.run()

    @precondition(lambda self: self.bench.log.committed < self.bench.log.end)
    @rule()
    def fail(self):
        self.bench.log.fail(StorageError("no disk"))
        self.bench.run()

    @precondition(lambda self: len(self.consumers) < 3)
    @rule(
        priority=st.integers(0, 1),
        limit=st.integers(1, 9),
        no_ack=st.booleans(),
        tags=st.sampled_from([None, None, None, "x"]),
        exclusive=st.sampled_from([False] * 7 + [True]),
    )
    def consume(self, priority, limit, no_ack, tags, exclusive):
        if not self.bench.queue.admits(exclusive=exclusive):
            return
        consumer = queue_bench.Consumer(limit, no_ack=no_ack, at_once=5)
        consumer.priority, consumer.arguments = priority, {}
        if tags is not None and not self.bench.queue.settings.group_ordering:
            consumer.arguments = {"x-filter-tags": tags}
        consumer.in_flight = 0
        self.bench.queue.add_consumer(consumer, exclusive=exclusive)
        self.consumers.append(consumer)
        self.bench.run()

    @precondition(lambda self: self.consumers)
    @rule(data=st.data())
    def cancel(self, data):
        consumer = data.draw(st.sampled_from(self.consumers))
        self.consumers.remove(consumer)
        self.bench.queue.remove_consumer(consumer)
        self.bench.run()

    @precondition(lambda self: self.consumers)
    @rule(data=st.data(), more=st.integers(1, 9))
    def give_credit(self, data, more):
        consumer = data.draw(st.sampled_from(self.consumers))
        consumer.limit += more
        self.bench.queue.wake(consumer)
        self.bench.run()

    def leased(self, data):
        """A stretch of what is leased to a consumer."""
        queue = self.bench.queue
        ranges = self.state.leased_in(0, 1 << 60)
        leased = [o for first, stop in ranges for o in range(first, stop) if not queue.waits(o)]
        low = data.draw(st.integers(0, len(leased)))
        high = data.draw(st.integers(low, len(leased)))
        return [(offset, offset + 1) for offset in leased[low:high]]

    @precondition(lambda self: self.state.has_leases)
    @rule(data=st.data())
    def acknowledge(self, data):
        self.bench.queue.settle(self.leased(data))
        self.bench.run()

    @precondition(lambda self: self.state.has_leases)
    @rule(data=st.data(), failed=st.booleans(), delay_ms=st.sampled_from([None, None, 250]))
    def return_(self, data, failed, delay_ms):
        self.bench.queue.return_(self.leased(data), failed=failed, delay_ms=delay_ms)
        self.bench.run()

    @precondition(lambda self: self.state.has_leases)
    @rule(data=st.data())
    def reject(self, data):
        self.bench.queue.discard(self.leased(data))
        self.bench.run()

    @rule()
    def get(self):
        if self.bench.queue.is_caught_up:
            self.bench.queue.get()

    @precondition(lambda self: self.state.ready_count > 5)
    @rule()
    def purge(self):
        self.bench.queue.purge()
        self.bench.run()

    @rule(milliseconds=st.sampled_from([100, 400]))
    def time_passes(self, milliseconds):
        self.bench.advance(milliseconds)

    @precondition(lambda self: self.bench.queue.settings.max_length_bytes is not None)
    @rule(limit=st.sampled_from([30, 60]))
    def change_limit(self, limit):
        settings = replace(self.bench.queue.settings, max_length_bytes=limit)
        self.bench.queue.reconfigure(settings)
        self.bench.run()

    @precondition(lambda self: self.state.unsettled_count > 5)
    @rule()
    def restart(self):
        self.consumers.clear()
        with recorded_states():
            self.bench.reopen()
        self.bench.run()

    @invariant()
    def the_same_commands_lead_to_the_same_state(self):
        if not hasattr(self, "bench"):
            return
        replayed = self.state.commands.replay()
        assert contents_of_queue(replayed) == named(self.state, contents_of_queue)


def named(state, contents):
    """The contents of a recorded state with the names that its log gave to consumers."""
    log = state.commands
    for consumer in state.consumers:
        consumer.name = log.of(consumer).name
    return contents(state)


TestRecordedQueue = RecordedQueue.TestCase
TestRecordedQueue.settings = hypothesis_settings(max_examples=examples(200), stateful_step_count=60)


class RecordedStream(StreamMachine):
    """A stream in use, whose state is replayed from its commands after each step."""

    def __init__(self):
        with recorded_states():
            super().__init__()

    @invariant()
    def the_same_commands_lead_to_the_same_state(self):
        state = self.bench.stream.state
        assert contents_of_stream(state.commands.replay()) == named(state, contents_of_stream)


TestRecordedStream = RecordedStream.TestCase
TestRecordedStream.settings = hypothesis_settings(max_examples=examples(60), stateful_step_count=30)
