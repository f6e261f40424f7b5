"""The state of a queue: its rules one by one, then against a model that keeps every message."""

import random
from dataclasses import dataclass, field
from typing import ClassVar

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from leveret.core.ledgers.groups import GroupLedger
from leveret.core.ledgers.ledger import Ledger
from leveret.core.ledgers.priorities import PriorityLedger
from leveret.core.queues.service_line import CHUNK_OFFSETS_MAX, DEAL_SINGLY_MAX, chunk_offsets
from leveret.core.queues.state import QueueState
from leveret.core.settings.queue_settings import RetryDelay
from leveret.ports.ranges import RangeSet
from leveret.ports.records import BatchBuilder, RecordFlag
from tests.support.examples import examples
from tests.support.queue_bench import content_header

CONSUMERS_MAX = 5
LIMITS = st.one_of(st.integers(0, 8), st.sampled_from([50, 2_000]))


@dataclass(eq=False)
class FakeConsumer:
    name: str = ""
    limit: int = 1_000_000
    priority: int = 0
    held: set[int] = field(default_factory=set)
    last_turn: int = 0  # when it came or was served last

    def capacity(self) -> int:
        return max(0, self.limit - len(self.held))

    @property
    def in_flight(self) -> int:
        return len(self.held)


def queue(committed=0, *, first=0, settled=(), **options):
    return QueueState(Ledger(first, committed, RangeSet(settled)), **options)


def next_offer(state):
    """The next offer to whoever has capacity, as the shell finds it, or None."""
    while True:
        if (consumer := state.next()) is not None:
            if (offer := state.credit(consumer, consumer.capacity())) is not None:
                return offer
        elif state.is_handing_over and not state.active.in_flight:
            state.hand_over()
        else:
            return None


def deliver_next(state, at_most=None):
    """One turn: (consumer's name, first, stop, redelivered), or None."""
    offer = next_offer(state)
    if offer is None:
        return None
    stop = offer.stop if at_most is None else min(offer.stop, offer.first + at_most)
    state.deliver(offer, stop)
    offer.consumer.held.update(range(offer.first, stop))
    return offer.consumer.name, offer.first, stop, offer.redelivered


def deliver_all(state):
    turns = []
    while (turn := deliver_next(state)) is not None:
        turns.append(turn)
    return turns


def with_consumers(state, *consumers):
    for consumer in consumers:
        state.add_consumer(consumer)
    return state


# Offers


def test_offers_nothing_without_a_consumer_or_without_a_message():
    state = queue(3)
    assert next_offer(state) is None
    assert next_offer(with_consumers(queue(), FakeConsumer())) is None
    state.add_consumer(FakeConsumer(limit=0))
    assert next_offer(state) is None


def test_an_offer_changes_nothing():
    state = with_consumers(queue(3), FakeConsumer("a"), FakeConsumer("b"))
    one, other = next_offer(state), next_offer(state)
    assert (one.consumer, one.first, one.stop) == (other.consumer, other.first, other.stop)
    assert (state.ready_count, state.leased_count) == (3, 0)


def test_a_lone_consumer_takes_everything_it_can_at_once():
    state = with_consumers(queue(5_000), FakeConsumer("a", limit=2_000))
    assert deliver_all(state) == [("a", 0, 2_000, False)]


def test_a_consumer_is_alone_when_all_others_are_blocked():
    state = with_consumers(queue(10), FakeConsumer("a", limit=0), FakeConsumer("b"))
    assert deliver_all(state) == [("b", 0, 10, False)]


def test_small_backlogs_are_dealt_one_by_one_in_turn():
    state = with_consumers(queue(4), FakeConsumer("a"), FakeConsumer("b"), FakeConsumer("c"))
    assert [turn[:2] for turn in deliver_all(state)] == [("a", 0), ("b", 1), ("c", 2), ("a", 3)]


def test_large_backlogs_are_dealt_in_chunks():
    state = with_consumers(queue(1_000), FakeConsumer("a"), FakeConsumer("b"))
    assert deliver_next(state) == ("a", 0, 125, False)
    assert deliver_next(state) == ("b", 125, 234, False)


@pytest.mark.parametrize("consumer_count", [2, 3, 50])
def test_chunks_grow_with_the_backlog_between_one_and_their_limit(consumer_count):
    chunks = [chunk_offsets(ready, consumer_count) for ready in range(1, 4_000 * consumer_count, 7)]
    assert chunks == sorted(chunks)
    assert chunks[0] == 1
    assert chunks[-1] == CHUNK_OFFSETS_MAX
    assert chunk_offsets(DEAL_SINGLY_MAX * consumer_count, consumer_count) == 1


def test_a_chunk_is_no_more_than_the_consumer_can_take():
    state = with_consumers(queue(40), FakeConsumer("a", limit=3), FakeConsumer("b"))
    assert chunk_offsets(40, 2) == 5
    assert deliver_next(state) == ("a", 0, 3, False)


def test_messages_committed_later_go_on_in_turn():
    state = with_consumers(queue(1), FakeConsumer("a"), FakeConsumer("b"))
    deliver_all(state)
    state.commit(2)
    assert deliver_next(state) == ("b", 1, 2, False)


def test_what_could_not_be_sent_stays_ready_in_place():
    state = with_consumers(queue(10), FakeConsumer("a"))
    assert deliver_next(state, at_most=4) == ("a", 0, 4, False)
    assert (state.ready_count, state.leased_count) == (6, 4)
    assert deliver_next(state) == ("a", 4, 10, False)


def test_the_turn_stays_when_nothing_could_be_sent():
    state = with_consumers(queue(2), FakeConsumer("a"), FakeConsumer("b"))
    deliver_next(state, at_most=0)
    assert state.leased_count == 0
    assert deliver_next(state) == ("a", 0, 1, False)


def test_a_consumer_that_was_blocked_is_first_when_it_is_not_any_more():
    blocked = FakeConsumer("a", limit=0)
    state = with_consumers(queue(3), blocked, FakeConsumer("b"), FakeConsumer("c"))
    assert deliver_next(state)[0] == "b"
    blocked.limit = 1
    state.wake(blocked)
    assert [turn[0] for turn in deliver_all(state)] == ["a", "c"]


@pytest.mark.covers("B-120")
def test_higher_priorities_are_served_while_they_can_take():
    state = with_consumers(
        queue(6),
        FakeConsumer("low", priority=-1),
        FakeConsumer("high1", limit=2, priority=7),
        FakeConsumer("middle", limit=1),
        FakeConsumer("high2", limit=1, priority=7),
    )
    names = [(turn[0], turn[2] - turn[1]) for turn in deliver_all(state)]
    assert names == [("high1", 1), ("high2", 1), ("high1", 1), ("middle", 1), ("low", 2)]
    assert [consumer.name for consumer in state.consumers] == ["high2", "high1", "middle", "low"]


def test_more_than_was_offered_cannot_have_been_sent():
    state = with_consumers(queue(4), FakeConsumer(limit=2))
    with pytest.raises(AssertionError):
        state.deliver(next_offer(state), 3)


def test_an_offer_is_void_once_its_offsets_went_elsewhere():
    state = with_consumers(queue(4), FakeConsumer())
    offer = next_offer(state)
    state.get()
    with pytest.raises(AssertionError):
        state.deliver(offer, offer.stop)


# Returns, settlements, get, purge


def test_returned_offsets_come_first_and_flagged():
    state = with_consumers(queue(6), FakeConsumer("a", limit=4))
    deliver_all(state)
    state.return_([(1, 2), (3, 4)])
    state.consumers[0].limit = 100
    state.wake()
    assert deliver_all(state) == [
        ("a", 1, 2, True),
        ("a", 3, 4, True),
        ("a", 4, 6, False),
    ]


def test_settled_offsets_are_gone():
    state = with_consumers(queue(6), FakeConsumer("a"))
    deliver_all(state)
    assert state.settle([(0, 2), (5, 6)]) == 3
    assert (state.ready_count, state.leased_count) == (0, 3)


def test_get_takes_the_lowest_whoever_consumes():
    state = with_consumers(queue(2), FakeConsumer(limit=0))
    assert state.get() == (0, False)
    state.return_([(0, 1)])
    assert state.get() == (0, True)
    assert state.get() == (1, False)
    assert state.get() is None


def test_purge_leaves_leases():
    state = with_consumers(queue(6), FakeConsumer(limit=2))
    deliver_all(state)
    assert state.purge() == [(2, 6)]
    assert (state.ready_count, state.leased_count) == (0, 2)
    assert state.purge() == []


@pytest.mark.covers("B-143")
def test_what_comes_back_often_waits_longer():
    state = queue(2, counts_returns=True, retry_delay=RetryDelay(True, False, 100, 250))
    now, waited = 1000, []
    for _ in range(4):
        assert state.get() == (0, bool(waited))
        state.return_([(0, 1)], now_ms=now)
        assert (state.ready_count, state.leased_count, state._delayed.count) == (1, 0, 1)
        due = state._delayed.next_ms
        assert not state.release(due - 1)
        assert state.release(due)
        waited.append(due - now)
        now = due
    assert waited == [100, 200, 250, 250]


@pytest.mark.covers("B-143")
@pytest.mark.parametrize("failed", [False, True])
def test_only_one_kind_of_return_may_be_delayed(failed):
    state = queue(2, retry_delay=RetryDelay(failed, not failed, 100))
    state.get(), state.get()
    state.return_([(0, 1)], failed=failed)
    state.return_([(1, 2)], failed=not failed)
    assert (state.ready_count, state._delayed.count) == (1, 1)
    assert state.get() == (1, True)


def test_a_purge_takes_what_is_delayed():
    state = queue(3, retry_delay=RetryDelay(True, True, 100))
    state.get(), state.get()
    state.return_([(0, 1)])
    assert state.purge() == [(0, 1), (2, 3)]
    assert (state.leased_count, state._delayed.count, state._delayed.next_ms) == (1, 0, None)


# Consumers come and go


def test_removing_a_consumer_leaves_its_leases_and_the_others_turns():
    consumers = [FakeConsumer(name) for name in "abc"]
    state = with_consumers(queue(5), *consumers)
    deliver_next(state)
    state.remove_consumer(consumers[1])
    assert state.leased_count == 1
    assert [turn[0] for turn in deliver_all(state)] == ["c", "a", "c", "a"]
    assert state.consumer_count == 2


def test_an_exclusive_consumer_is_the_only_one():
    state = queue()
    alone = FakeConsumer()
    state.add_consumer(alone, exclusive=True)
    assert not state.admits(exclusive=False)
    with pytest.raises(AssertionError):
        state.add_consumer(FakeConsumer())
    state.remove_consumer(alone)
    state.add_consumer(FakeConsumer())
    assert state.admits(exclusive=False)
    assert not state.admits(exclusive=True)


def test_a_consumer_cannot_be_added_twice():
    consumer = FakeConsumer()
    state = with_consumers(queue(), consumer)
    with pytest.raises(AssertionError):
        state.add_consumer(consumer)


@pytest.mark.covers("B-123")
def test_a_single_active_consumer_is_followed_by_the_next_in_line():
    first, second, third = consumers = [
        FakeConsumer("a", limit=2),
        FakeConsumer("b"),
        FakeConsumer("c"),
    ]
    state = with_consumers(queue(6, single_active=True), *consumers)
    assert deliver_all(state) == [("a", 0, 2, False)]
    state.remove_consumer(second)
    assert next_offer(state) is None
    state.remove_consumer(first)
    assert deliver_all(state) == [("c", 2, 6, False)]
    state.remove_consumer(third)
    state.commit(7)
    assert next_offer(state) is None
    state.add_consumer(second)
    assert deliver_all(state) == [("b", 6, 7, False)]


@pytest.mark.covers("B-123")
def test_a_single_active_consumer_is_followed_by_the_highest_priority():
    active, *others = [FakeConsumer(n, priority=p) for n, p in [("a", 0), ("b", 0), ("c", 1)]]
    state = with_consumers(queue(6, single_active=True), active, *others)
    assert deliver_next(state, at_most=1) == ("a", 0, 1, False)
    state.remove_consumer(active)
    assert deliver_all(state) == [("c", 1, 6, False)]


# Everything at once


def ranges_of(offsets):
    """Each offset as a range of its own or joined with its neighbours: both must do."""
    return list(RangeSet((offset, offset + 1) for offset in offsets))


def longest_waiting(consumers):
    """Of the highest priority, whoever was served longest ago."""
    return min(consumers, key=lambda consumer: (-consumer.priority, consumer.last_turn))


class InOffsets:
    """Order of delivery: by offset."""

    properties: ClassVar = [{}]

    def __init__(self):
        self.properties_of = {}  # by offset
        self.returned = []  # offsets that go first, for queues that have such

    def ledger(self, *log):
        return Ledger(*log)

    def sorted(self, ready):
        return sorted(ready)

    def check_range(self, offsets, ready, leased):
        assert self.sorted(ready)[: len(offsets)] == list(offsets)

    def is_stuck(self, ready, leased):
        """Whether nothing of what is ready can be delivered now."""
        return not ready

    def leave(self, offsets):
        self.returned = [offset for offset in self.returned if offset not in offsets]

    def return_(self, offsets):
        pass


class InPriorities(InOffsets):
    """By priority, then by offset."""

    properties: ClassVar = [{}, {}, {"priority": 1}, {"priority": 3}, {"priority": 9}]
    otherwise = 0

    def ledger(self, *log):
        return PriorityLedger(*log, 5, self.otherwise, False)

    def level(self, offset):
        return min(self.properties_of[offset].get("priority", self.otherwise), 5)

    def sorted(self, ready):
        fresh = set(ready) - set(self.returned)
        return self.returned + sorted(fresh, key=lambda offset: (-self.level(offset), offset))


class InPrioritiesReturnsFirst(InPriorities):
    """As quorum queues: returned ones first, in the order in which they came back."""

    otherwise = 2

    def ledger(self, *log):
        return PriorityLedger(*log, 5, self.otherwise, True)

    def return_(self, offsets):
        self.returned += sorted(offsets)


class InGroups(InOffsets):
    """At most one message of a group is leased, the lowest of those that are left."""

    properties: ClassVar = [{}, {"group": "a"}, {"group": "b"}]

    def ledger(self, *log):
        return GroupLedger(*log)

    def group(self, offset):
        return self.properties_of[offset].get("group")

    def free(self, ready, leased):
        """Return what may be delivered now."""
        groups, taken = {}, {self.group(offset) for offset in leased} - {None}
        for offset in sorted(ready, reverse=True):
            groups[self.group(offset)] = offset
        return {
            offset
            for offset in ready
            if (group := self.group(offset)) is None
            or (groups[group] == offset and group not in taken)
        }

    def check_range(self, offsets, ready, leased):
        assert self.free(ready, leased).issuperset(offsets)

    def is_stuck(self, ready, leased):
        return not self.free(ready, leased)


def batch_of(base, properties):
    """A batch of records with these properties."""
    builder = BatchBuilder()
    for each in properties:
        known = dict(each)
        group = known.pop("group", None)
        if group is not None:
            known["headers"] = {"x-message-group": group}
        flags, header = content_header(1, **known)
        builder.add(flags | (RecordFlag.HAS_GROUP if group else 0), 0, b"", b"q", header, b"x")
    return builder.seal(base)


class QueueAgainstMessages(RuleBasedStateMachine):
    """Each message stands in `ready`, `leased` or `settled`; who got what is checked each time."""

    @initialize(
        order=st.sampled_from([InOffsets, InPriorities, InPrioritiesReturnsFirst, InGroups]),
        seed=st.integers(0, 1000),
        first=st.integers(0, 5),
        count=st.sampled_from([0, 1, 10, 200]),
        settled=st.sets(st.integers(0, 15)),
        redelivered_stop=st.integers(0, 20),
        single_active=st.sampled_from([False, False, True]),
        by_priority=st.booleans(),
        counting=st.sampled_from([(False, None), (True, None), (True, 0), (True, 2)]),
        every=st.booleans(),
        delay=st.sampled_from(
            [None, None, RetryDelay(True, True, 5, 9), RetryDelay(True, False, 4)]
        ),
    )
    def open(
        self,
        order,
        seed,
        first,
        count,
        settled,
        redelivered_stop,
        single_active,
        by_priority,
        counting,
        every,
        delay,
    ):
        self.order, self.random = order(), random.Random(seed)
        self.by_priority = by_priority
        self.counts_every_return, self.delay = every, delay
        self.now = 0
        self.counts_returns, self.delivery_limit = counting
        self.first, self.committed = first, first + count
        self.redelivered_stop = redelivered_stop
        self.single_active = single_active
        self.turns_taken = 0
        self.active = None
        self.exclusive = False
        self.consumers = []  # in the order in which they came
        self.settled = {offset for offset in settled if first <= offset < self.committed}
        self.ready = set(range(first, self.committed)) - self.settled
        self.leased = set()
        self.delayed = {}  # until when
        self.delivered = set()  # at least once, in this run
        self.append(first, self.committed)
        self.open_machine()

    def append(self, first, stop):
        for offset in range(first, stop):
            self.order.properties_of[offset] = self.random.choice(self.order.properties)

    def index(self, first, stop):
        """Let the state look at records, as a queue does before they are committed."""
        known = [self.order.properties_of[offset] for offset in range(first, stop)]
        if known:
            self.state.index(batch_of(first, known), RangeSet(ranges_of(self.settled)))

    def open_machine(self):
        settled = RangeSet(ranges_of(self.settled))
        settled.add(0, self.first)
        self.state = QueueState(
            self.order.ledger(self.first, self.committed, settled, self.redelivered_stop),
            single_active=self.single_active,
            by_priority=self.by_priority,
            counts_returns=self.counts_returns,
            counts_every_return=self.counts_every_return,
            delivery_limit=self.delivery_limit,
            retry_delay=self.delay,
        )
        self.index(self.first, self.committed)
        self.state.commit(self.committed)
        self.counts, self.acquired = {}, {}

    @rule(count=st.sampled_from([0, 1, 7, 40, 100, 700]))
    def commit(self, count):
        self.ready |= set(range(self.committed, self.committed + count))
        self.append(self.committed, self.committed + count)
        self.index(self.committed, self.committed + count)
        self.committed += count
        self.state.commit(self.committed)

    @precondition(lambda self: len(self.consumers) < CONSUMERS_MAX)
    @rule(
        priority=st.sampled_from([0, 0, 0, 1, -3]),
        limit=LIMITS,
        exclusive=st.sampled_from([False] * 7 + [True]),
    )
    def add_consumer(self, priority, limit, exclusive):
        admitted = (
            not exclusive
            if self.single_active
            else (not self.consumers or not (exclusive or self.exclusive))
        )
        assert self.state.admits(exclusive=exclusive) == admitted
        if not admitted:
            return
        consumer = FakeConsumer(limit=limit, priority=priority)
        self.state.add_consumer(consumer, exclusive=exclusive)
        self.consumers.append(consumer)
        self.stamp(consumer)
        self.exclusive = exclusive
        self.active = self.active or consumer

    @precondition(lambda self: self.consumers)
    @rule(data=st.data(), returns=st.booleans())
    def remove_consumer(self, data, returns):
        """A cancelled consumer keeps its leases for a while; a closed channel returns them."""
        consumer = data.draw(st.sampled_from(self.consumers))
        self.consumers.remove(consumer)
        self.state.remove_consumer(consumer)
        self.exclusive = False
        if consumer is self.active:
            self.active = longest_waiting(self.consumers) if self.consumers else None
        if returns:
            self.return_offsets(consumer.held)

    @precondition(lambda self: self.consumers)
    @rule(data=st.data(), limit=LIMITS)
    def change_limit(self, data, limit):
        consumer = data.draw(st.sampled_from(self.consumers))
        consumer.limit = limit
        self.state.wake(consumer)

    @rule(at_most=st.sampled_from([0, 1, 2, 5_000]))
    def turn(self, at_most):
        offer = next_offer(self.state)
        able = self.able()
        if self.is_stuck() or not able:
            assert offer is None
            return
        assert offer is not None
        # Served longest ago, served next: nobody who can take is passed over twice by another.
        assert offer.consumer is longest_waiting(able)
        self.check_range(offer)
        self.check_chunk(offer, able)
        stop = min(offer.stop, offer.first + at_most)
        self.state.deliver(offer, stop)
        if stop > offer.first:
            self.stamp(offer.consumer)
            self.lease(range(offer.first, stop), offer.consumer)

    @rule()
    def turns(self):
        """Until nothing is left to offer: each turn takes at least one message."""
        for _ in range(len(self.ready) + 1):
            if self.is_stuck() or not self.able():
                break
            self.turn(5_000)
        assert next_offer(self.state) is None

    def is_stuck(self):
        return self.order.is_stuck(self.ready, self.leased | set(self.delayed))

    def able(self):
        candidates = self.consumers
        if self.single_active and self.active:
            if self.by_priority and self.ready:
                self.hand_over()
            candidates = [self.active] if self.active else []
            if self.by_priority and self.outranked():
                candidates = []
        able = [consumer for consumer in candidates if consumer.capacity()]
        highest = max((consumer.priority for consumer in able), default=0)
        return [consumer for consumer in able if consumer.priority == highest]

    def outranked(self):
        return max(c.priority for c in self.consumers) > self.active.priority

    def hand_over(self):
        """Make one of higher priority active when the active one holds nothing."""
        if self.outranked() and not self.active.held:
            self.active = longest_waiting(self.consumers)

    def check_range(self, offer):
        offsets = range(offer.first, offer.stop)
        assert len(offsets) > 0
        self.order.check_range(offsets, self.ready, self.leased | set(self.delayed))
        assert self.ready.issuperset(offsets)
        assert {self.was_delivered(offset) for offset in offsets} == {offer.redelivered}
        assert len(offsets) <= offer.consumer.capacity()

    def check_chunk(self, offer, able):
        length = offer.stop - offer.first
        line = [c for c in self.consumers if c.priority == offer.consumer.priority]
        if len(able) > 1:
            assert length <= CHUNK_OFFSETS_MAX
            assert length == 1 or len(self.ready) > DEAL_SINGLY_MAX * len(line)
        elif len(line) > 1 and length == min(offer.consumer.capacity(), self.chunk(line)):
            pass  # the others may have capacity, for all that the state was told
        elif length < offer.consumer.capacity():
            more_of_the_kind = (
                offer.stop in self.ready and self.was_delivered(offer.stop) == offer.redelivered
            )
            assert not more_of_the_kind or type(self.order) is not InOffsets

    def chunk(self, line):
        return chunk_offsets(len(self.ready), len(line))

    def stamp(self, consumer):
        self.turns_taken += 1
        consumer.last_turn = self.turns_taken

    def was_delivered(self, offset):
        return offset < self.redelivered_stop or offset in self.delivered

    def lease(self, offsets, consumer=None):
        self.order.leave(offsets)
        self.ready.difference_update(offsets)
        self.leased.update(offsets)
        self.delivered.update(offsets)
        if consumer is not None:
            consumer.held.update(offsets)

    @rule()
    def get(self):
        got = self.state.get()
        if self.is_stuck():
            assert got is None
            return
        offset, redelivered = got
        self.order.check_range([offset], self.ready, self.leased | set(self.delayed))
        assert redelivered == self.was_delivered(offset)
        self.lease([offset])

    @precondition(lambda self: self.leased)
    @rule(data=st.data())
    def settle(self, data):
        offsets = self.some_leased(data)
        ranges = ranges_of(offsets)
        data.draw(st.randoms(use_true_random=False)).shuffle(ranges)
        assert self.state.settle(ranges) == len(offsets)
        self.leased -= offsets
        self.settled |= offsets
        self.end_leases(offsets)

    @precondition(lambda self: self.leased)
    @rule(data=st.data(), failed=st.booleans())
    def return_(self, data, failed):
        self.return_offsets(self.some_leased(data), failed=failed)

    def some_leased(self, data):
        """Every so-manieth of a stretch of the leased ones: prefixes, single ones, many holes."""
        leased = sorted(self.leased)
        low = data.draw(st.integers(0, len(leased) - 1))
        high = data.draw(st.integers(low + 1, len(leased)))
        return set(leased[low : high : data.draw(st.integers(1, 3))])

    def return_offsets(self, offsets, *, failed=True):
        offsets, refused = set(offsets), set()
        if self.counts_returns:
            for offset in offsets:
                self.acquired[offset] = self.acquired.get(offset, 0) + 1
        if self.counts_returns and (failed or self.counts_every_return):
            for offset in offsets:
                self.counts[offset] = self.counts.get(offset, 0) + 1
            if self.delivery_limit is not None:
                refused = {o for o in offsets if self.counts[o] > self.delivery_limit}
        found = self.state.return_(ranges_of(offsets), failed=failed, now_ms=self.now)
        assert found == ranges_of(refused)
        assert (self.state.counts, self.state.acquired) == (self.counts, self.acquired)
        self.state.settle(found)
        self.leased -= offsets
        accepted = offsets - refused
        if self.delay is not None and (self.delay.failed if failed else self.delay.returned):
            for offset in accepted:
                delay_ms = self.delay.min_ms * (self.counts.get(offset, 0) or 1)
                self.delayed[offset] = self.now + min(delay_ms, self.delay.max_ms)
        else:
            self.ready |= accepted
            self.order.return_(accepted)
        self.settled |= refused
        self.end_leases(offsets)

    @rule(milliseconds=st.integers(0, 12))
    def time_passes(self, milliseconds):
        self.now += milliseconds
        assert self.state._delayed.next_ms == min(self.delayed.values(), default=None)
        due = {offset for offset, due_ms in self.delayed.items() if due_ms <= self.now}
        assert list(RangeSet(self.state.release(self.now))) == ranges_of(due)
        self.ready |= due
        for due_ms in sorted({self.delayed[offset] for offset in due}):
            self.order.return_({o for o in due if self.delayed[o] == due_ms})
        self.delayed = {o: due_ms for o, due_ms in self.delayed.items() if o not in due}

    @rule(first=st.integers(0, 250), length=st.integers(1, 30))
    def withdraw(self, first, length):
        """Withdraw what expires or is too much, wherever it stands; what is leased stays."""
        gone = self.ready & set(range(first, first + length))
        taken = self.state.withdraw([(first, first + length)])
        assert list(RangeSet(taken)) == ranges_of(gone)
        self.state.settle(taken)
        self.order.leave(gone)
        self.ready -= gone
        self.settled |= gone
        self.end_leases(gone)

    def end_leases(self, offsets):
        for offset in offsets - self.ready - set(self.delayed):
            self.counts.pop(offset, None)
            self.acquired.pop(offset, None)
        assert (self.state.counts, self.state.acquired) == (self.counts, self.acquired)
        for consumer in self.consumers:
            if consumer.held & offsets:
                consumer.held -= offsets
                self.state.wake(consumer)

    @rule()
    def purge(self):
        purged, self.ready = self.ready | set(self.delayed), set()
        self.delayed = {}
        assert list(RangeSet(self.state.purge())) == ranges_of(purged)
        self.order.leave(purged)
        self.settled |= purged
        self.end_leases(purged)

    @rule()
    def crash(self):
        """The node starts again: leases and consumers are gone, every survivor may be a repeat."""
        self.ready |= self.leased | set(self.delayed)
        self.leased, self.delayed = set(), {}
        self.order.returned = []
        self.redelivered_stop = self.committed
        self.consumers, self.active, self.exclusive = [], None, False
        self.open_machine()

    @invariant()
    def every_offset_is_in_one_place(self):
        if not hasattr(self, "state"):
            return
        state, every = self.state, 1 << 60
        assert list(RangeSet(state.ready_in(0, every))) == ranges_of(self.ready)
        leased = list(RangeSet(state.leased_in(0, every)))
        assert leased == ranges_of(self.leased | set(self.delayed))
        assert self.state.ready_count == len(self.ready)
        assert self.state.leased_count == len(self.leased)
        assert self.state._delayed.count == len(self.delayed)
        held = self.ready, self.leased, self.delayed, self.settled
        counted = sum(map(len, held))
        assert counted == self.committed - self.first

    @invariant()
    def every_consumer_stands_in_its_line(self):
        if not hasattr(self, "state"):
            return
        listed = self.state.consumers
        assert set(listed) == set(self.consumers)
        assert len(listed) == self.state.consumer_count == len(self.consumers)
        priorities = [consumer.priority for consumer in listed]
        assert priorities == sorted(priorities, reverse=True)


TestQueueAgainstMessages = QueueAgainstMessages.TestCase
TestQueueAgainstMessages.settings = settings(max_examples=examples(150), stateful_step_count=60)


# Many consumers


def test_who_can_take_nothing_is_not_asked_again_until_woken():
    state = queue(10_000)
    asked = []

    class Asked(FakeConsumer):
        def capacity(self):
            asked.append(self)
            return super().capacity()

    blocked = [Asked(limit=0) for _ in range(1_000)]
    with_consumers(state, *blocked, FakeConsumer("able"), FakeConsumer("other"))
    assert len(deliver_all(state)) > 30
    assert len(asked) == 1_000
    deliver_next(state)
    assert len(asked) == 1_000
    blocked[500].limit = 1
    state.wake(blocked[500])
    state.commit(20_000)
    assert next_offer(state).consumer is blocked[500]
    assert len(asked) == 1_001


def test_consumers_come_and_go_without_a_look_at_the_others():
    state = queue(single_active=True)
    consumers = [FakeConsumer() for _ in range(20_000)]
    with_consumers(state, *consumers)
    for consumer in consumers:
        assert state.served == [consumer]
        state.remove_consumer(consumer)
    assert state.consumer_count == 0
