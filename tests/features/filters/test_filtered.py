"""Queues with consumers that want some messages: examples, and random histories against a model."""

from itertools import count

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from pamqp import commands

from leveret.core.settings.queue_settings import QueueSettings
from leveret.core.turn import SEARCH_NS_MAX
from leveret.errors import ChannelError, StorageError
from leveret.features.filters.filtered import FilteredDelivery, check_filterable
from leveret.ports.records import RecordFlag
from tests.support.contents import encode_properties
from tests.support.examples import examples
from tests.support.queue_bench import Bench, Consumer

FLAGS = RecordFlag.HAS_HEADERS


class Taker(Consumer):
    """A consumer with arguments."""

    def __init__(self, tags=None, *, sql=None, unmatched=None, priority=0, **others):
        super().__init__(**others)
        given = {"x-filter-tags": tags, "x-filter-sql": sql, "x-filter-unmatched": unmatched}
        self.arguments = {key: value for key, value in given.items() if value is not None}
        self.priority = priority
        self.in_flight = 0

    @property
    def offsets(self):
        return [offset for offset, _ in self.got]


def publish(bench, *tags, expiration=None, priority=None):
    for tag in tags:
        properties = commands.Basic.Properties(
            headers={"x-tags": tag, "n": tag}, expiration=expiration, priority=priority
        )
        flags = FLAGS
        flags |= RecordFlag.HAS_EXPIRATION if expiration else 0
        flags |= RecordFlag.HAS_PRIORITY if priority is not None else 0
        header = encode_properties(properties, 1)
        bench.queue.builder.add(flags, bench.clock.now, b"", b"q", header, b"x")
    bench.queue.flush()
    bench.queue.touch()
    bench.run()


@pytest.fixture
def bench():
    return Bench()


@pytest.mark.covers("C-209")
def test_a_consumer_gets_what_it_wants_and_the_rest_stays(bench):
    taker = Taker("a")
    bench.queue.add_consumer(taker)
    publish(bench, "a", "b", "a", "b")
    assert taker.got == [(0, False), (2, False)]
    assert bench.queue.message_count == 2
    rest = Taker("b")
    bench.queue.add_consumer(rest)
    bench.run()
    assert rest.got == [(1, False), (3, False)]


def test_conditions_hold_together(bench):
    taker = Taker("a || b", sql="n = 'b'")
    bench.queue.add_consumer(taker)
    publish(bench, "a", "b", "c")
    assert taker.offsets == [1]


@pytest.mark.covers("C-209")
def test_skipped_messages_are_consumed(bench):
    taker = Taker("a", unmatched="skip")
    publish(bench, "b", "a", "b")
    bench.queue.add_consumer(taker)
    bench.run()
    assert taker.offsets == [1]
    assert bench.queue.message_count == 0
    bench.queue.settle([(1, 2)])
    assert list(bench.log.settled) == [(0, 3)]
    assert bench.dead == []


def test_who_has_no_room_skips_nothing(bench):
    taker = Taker("a", unmatched="skip", limit=1)
    publish(bench, "b", "a", "b", "a")
    bench.queue.add_consumer(taker)
    bench.run()
    assert taker.offsets == [1]
    assert bench.queue.message_count == 2


def test_what_comes_back_is_looked_at_again_in_its_place(bench):
    taker = Taker("a", limit=3)
    bench.queue.add_consumer(taker)
    publish(bench, "a", "b", "a", "b", "a", "a")
    assert taker.offsets == [0, 2, 4]
    bench.queue.return_([(2, 3)])
    taker.limit = 5
    bench.queue.wake()
    bench.run()
    assert taker.got[3:] == [(2, True), (5, False)]


def test_what_another_gives_back_is_looked_at(bench):
    publish(bench, "a", "b", "a")
    greedy, taker = Taker(), Taker("a")
    bench.queue.add_consumer(greedy)
    bench.run()
    bench.queue.add_consumer(taker)
    bench.queue.remove_consumer(greedy)
    bench.run()
    assert taker.got == []
    bench.queue.return_([(0, 3)])
    bench.run()
    assert taker.got == [(0, True), (2, True)]


def test_what_waited_for_a_retry_is_looked_at(bench):
    taker = Taker("a")
    bench.queue.add_consumer(taker)
    publish(bench, "a", "b")
    bench.queue.return_([(0, 1)], delay_ms=100)
    bench.run()
    assert taker.offsets == [0]
    bench.advance(100)
    assert taker.got == [(0, False), (0, True)]


def test_higher_priorities_of_messages_come_first():
    bench = Bench(settings=QueueSettings(max_priority=5))
    publish(bench, "a", "b", "a", priority=1)
    publish(bench, "b", "a", "a", priority=5)
    taker = Taker("a", limit=2)
    bench.queue.add_consumer(taker)
    bench.run()
    assert taker.offsets == [4, 5]
    bench.queue.return_([(4, 5)])
    taker.limit = 10
    bench.queue.wake()
    bench.run()
    assert taker.got[2:] == [(4, True), (0, False), (2, False)]


def test_consumers_of_higher_priority_come_first(bench):
    low, high = Taker(), Taker("a", priority=5)
    publish(bench, "b", "a", "b", "a")
    bench.queue.add_consumer(low)
    bench.queue.add_consumer(high)
    bench.run()
    assert (high.offsets, low.offsets) == ([1, 3], [0, 2])


def test_only_the_active_consumer_looks():
    bench = Bench(settings=QueueSettings(single_active=True))
    first, second = Taker("a"), Taker("b")
    bench.queue.add_consumer(first)
    bench.queue.add_consumer(second)
    publish(bench, "b", "a")
    assert (first.offsets, second.offsets) == ([1], [])
    bench.queue.remove_consumer(first)
    bench.run()
    assert second.offsets == [0]


def test_equal_filters_share_the_work_and_its_fruits(bench):
    takers = [Taker("a", limit=2), Taker("a", limit=2)]
    for taker in takers:
        bench.queue.add_consumer(taker)
    publish(bench, "a", "b", "a", "a", "b", "a")
    assert [taker.offsets for taker in takers] == [[0, 3], [2, 5]]


def test_expired_messages_are_not_delivered():
    bench = Bench(settings=QueueSettings(dead_letter_exchange="dead"))
    publish(bench, "a", "b", "a", expiration="10")
    publish(bench, "a", expiration="1000")
    bench.clock.now += 50
    taker = Taker("a")
    bench.queue.add_consumer(taker)
    bench.run()
    assert taker.offsets == [3]
    assert sorted(bench.dead) == [(0, "expired"), (1, "expired"), (2, "expired")]


def test_without_acknowledgements_it_is_settled_at_once(bench):
    taker = Taker("a", no_ack=True)
    bench.queue.add_consumer(taker)
    publish(bench, "a", "b", "a")
    assert list(bench.log.settled) == [(0, 1), (2, 3)]


def test_a_full_socket_holds_up_nobody_else(bench):
    slow, other = Taker("a"), Taker("b")
    slow.room = 1
    bench.queue.add_consumer(slow)
    bench.queue.add_consumer(other)
    publish(bench, "a", "b", "a", "b")
    assert (slow.offsets, other.offsets) == ([0], [1, 3])
    slow.room = 10
    bench.queue.wake(slow)
    bench.run()
    assert slow.offsets == [0, 2]


def test_a_turn_looks_for_a_bounded_time_and_the_next_one_begins_with_who_had_none(bench):
    publish(bench, *["b"] * 300)
    bench.run()
    looks = count(step=SEARCH_NS_MAX // 10)
    bench.turn.clock_ns = lambda: next(looks)
    takers = [Taker(sql=f"n like 'a%' or n = 'a' or p.type = '{name}'") for name in "xyz"]
    for taker in takers:
        bench.queue.add_consumer(taker)
    seen = []
    searches = [bench.queue.extension(FilteredDelivery)._taking[taker] for taker in takers]
    while bench.scheduled:
        bench.scheduled.pop()()
        seen.append([search._cursors.get(0, 0) for search in searches])
        assert sum(map(sum, seen[-1:])) - sum(map(sum, seen[-2:-1])) <= 12
    assert seen[-1] == [300, 300, 300]
    assert min(seen[len(seen) // 2]) > 100
    assert [taker.got for taker in takers] == [[], [], []]


def test_purge_and_restart_leave_no_trace(bench):
    taker = Taker("a")
    publish(bench, "b", "a", "b")
    bench.queue.add_consumer(taker)
    bench.run()
    bench.queue.purge()
    publish(bench, "a")
    assert taker.offsets == [1, 3]
    bench.queue.settle([(1, 2)])
    bench.reopen()
    again = Taker("a")
    bench.queue.add_consumer(again)
    bench.run()
    assert again.offsets == [3]


def test_who_comes_again_goes_on_where_it_was(bench):
    publish(bench, "b", "b", "a")
    for _ in range(2):
        taker = Taker("a", limit=1)
        bench.queue.add_consumer(taker)
        bench.run()
        assert taker.offsets == [2]
        bench.queue.remove_consumer(taker)
        bench.queue.return_([(2, 3)])
    assert not bench.queue.searches


def test_without_filters_nothing_is_different(bench):
    plain, filtered = Taker(), Taker("a")
    bench.queue.add_consumer(filtered)
    bench.queue.remove_consumer(filtered)
    bench.queue.add_consumer(plain)
    publish(bench, "a", "b")
    assert plain.got == [(0, False), (1, False)]
    assert not bench.queue.searches


FILTERS = {
    None: lambda tag: True,
    "a": lambda tag: tag == "a",
    "!a": lambda tag: tag != "a",
    "a || c": lambda tag: tag in "ac",
    "d": lambda tag: False,
}


class FilteredAgainstModel(RuleBasedStateMachine):
    """Consumers come and go, acknowledge and give back; the model knows who wants what.

    At rest nobody with room may be left without a ready message that it wants; nobody is ever sent
    what it does not want; each gets its messages in order, and a message is with one at a time.
    """

    @initialize(priorities=st.booleans(), single_active=st.booleans())
    def begin(self, priorities, single_active):
        self.single_active = single_active
        self.bench = Bench(
            settings=QueueSettings(
                max_priority=2 if priorities else None, single_active=single_active
            )
        )
        self.tags = []
        self.takers = []
        self.held = {}  # offset -> who holds it
        self.gone = set()  # settled or skipped
        self.delivered = set()  # at least once

    @rule(tags=st.lists(st.sampled_from("abc"), min_size=1, max_size=8), data=st.data())
    def commit(self, tags, data):
        priority = data.draw(st.sampled_from([None, 0, 1, 2]))
        self.tags += tags
        publish(self.bench, *tags, priority=priority)
        self.collect()

    @rule(
        chosen=st.sampled_from(list(FILTERS)),
        limit=st.integers(1, 6),
        unmatched=st.sampled_from([None, None, "keep", "skip"]),
        priority=st.sampled_from([0, 0, 1]),
    )
    def come(self, chosen, limit, unmatched, priority):
        if chosen is None:
            unmatched = None
        taker = Taker(chosen, limit=limit, unmatched=unmatched, priority=priority)
        taker.wants, taker.seen, taker.skips = FILTERS[chosen], 0, unmatched == "skip"
        self.takers.append(taker)
        self.bench.queue.add_consumer(taker)
        self.run()

    @rule(data=st.data(), discard=st.booleans())
    def go(self, data, discard):
        if self.takers:
            taker = self.takers.pop(data.draw(st.integers(0, len(self.takers) - 1)))
            self.bench.queue.remove_consumer(taker)
            self.give_back([offset for offset, who in self.held.items() if who is taker])
            self.run()

    @rule(data=st.data(), back=st.booleans())
    def settle(self, data, back):
        if not self.held:
            return
        offsets = sorted(data.draw(st.sets(st.sampled_from(sorted(self.held)), min_size=1)))
        for offset in offsets:
            self.held[offset].limit += 1
        if back:
            self.give_back(offsets)
        else:
            self.bench.queue.settle([(offset, offset + 1) for offset in offsets])
            for offset in offsets:
                del self.held[offset]
                self.gone.add(offset)
        self.bench.queue.wake()
        self.run()

    def give_back(self, offsets):
        for offset in offsets:
            del self.held[offset]
        self.bench.queue.return_([(offset, offset + 1) for offset in offsets])

    @rule()
    def purge(self):
        self.gone |= {o for o in range(len(self.tags)) if o not in self.held}
        self.bench.queue.purge()

    def run(self):
        self.bench.run()
        self.collect()

    def collect(self):
        for taker in self.takers:
            for offset, redelivered in taker.got[taker.seen :]:
                assert taker.wants(self.tags[offset]), "nobody is sent what it does not want"
                assert offset not in self.held, "a message is with one at a time"
                assert offset not in self.gone
                assert redelivered == (offset in self.delivered)
                self.held[offset] = taker
                self.delivered.add(offset)
            taker.seen = len(taker.got)
        ready = self.ready()
        missing = set(range(len(self.tags))) - self.gone - set(self.held) - ready
        assert not missing or any(taker.skips for taker in self.takers)
        self.gone |= missing

    def ready(self):
        ledger = self.bench.queue.state._ledger
        return {o for first, stop in ledger.ready_in(0, len(self.tags)) for o in range(first, stop)}

    @invariant()
    def nobody_waits_for_what_is_there(self):
        if not hasattr(self, "tags"):
            return
        active = self.bench.queue.state.served
        for offset in self.ready():
            for taker in active:
                if taker.capacity() > 0:
                    assert not taker.wants(self.tags[offset])
                    assert not taker.skips


FilteredAgainstModel.TestCase.settings = settings(
    max_examples=examples(200), stateful_step_count=40
)
TestFilteredAgainstModel = FilteredAgainstModel.TestCase


def test_what_lies_on_a_device_is_waited_for(bench):
    publish(bench, "b", "a")
    bench.log.at_hand = False
    taker, low = Taker("a"), Taker(priority=-1)
    bench.queue.add_consumer(taker)
    bench.queue.add_consumer(low)
    bench.turns()
    assert (taker.got, low.got) == ([], [])
    bench.run()
    assert (taker.offsets, low.offsets) == ([1], [0])


def test_a_device_that_fails_is_asked_again(bench):
    publish(bench, "a")
    bench.log.at_hand = False
    bench.log.fetch_error = StorageError("no")
    taker = Taker("a")
    bench.queue.add_consumer(taker)
    bench.run()
    assert [str(error) for _, error in bench.reported] == ["no"]
    bench.reported.clear()
    bench.log.fetch_error = None
    bench.queue.wake()
    bench.run()
    assert taker.offsets == [0]


def test_a_hole_in_the_log_is_passed_over(bench):
    publish(bench, "b", "a")
    publish(bench, "a")
    publish(bench, "a")
    bench.log.damaged.add(2)
    taker = Taker("a")
    bench.queue.add_consumer(taker)
    bench.run()
    assert taker.offsets == [1, 3]
    assert bench.lost() == ["messages lost: 1 (at offset 2)"]


def test_where_groups_keep_their_order_nobody_picks():
    bench = Bench(settings=QueueSettings(group_ordering=True))
    check_filterable(bench.queue, {"x-priority": 1})
    for key in ("x-filter-tags", "x-filter-sql"):
        with pytest.raises(ChannelError, match=f"invalid arg '{key}' for queue 'q'"):
            check_filterable(bench.queue, {key: "a"})
