"""Looking into queues and streams without touching anything."""

from itertools import count

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leveret.features.browse import browsing
from leveret.features.browse.browsing import BrowseCursor, find
from leveret.features.browse.message_filter import MessageFilter, MessageState
from leveret.ports.ranges import RangeSet
from tests.features.dead_letter.test_redrive import Yard


@pytest.fixture
def yard():
    return Yard(**{"x-max-length": 1_000_000})


def walked(yard, queue, criteria=None, first=0, stop=1 << 40, **options):
    """Return what one walk finds, and the walk."""
    walk, found = BrowseCursor(queue, first, stop, **options), []

    async def go():
        async for seen in walk.matching(criteria or MessageFilter()):
            found.extend(seen)

    yard.stage.spawn(go())
    yard.stage.run()
    return found, walk


def offsets(found):
    return [seen.offset for seen in found]


def fill(yard, count=10, queue=None, **properties):
    for number in range(count):
        yard.publish(queue or yard.queue, b"%d" % number, message_id=f"id{number}", **properties)


@pytest.mark.covers("C-214")
def test_a_walk_sees_everything_in_order_and_changes_nothing(yard):
    fill(yard)
    taken = yard.queue.get()
    found, walk = walked(yard, yard.queue)
    assert offsets(found) == list(range(10))
    assert [seen.message.body for seen in found] == [b"%d" % number for number in range(10)]
    assert [seen.state for seen in found] == [MessageState.UNACKED] + [MessageState.READY] * 9
    assert (walk.scanned, walk.rest) == (10, None)
    assert (yard.queue.message_count, yard.queue.leased_count) == (9, 1)
    assert yard.queue.get() == (1, False), taken


def test_backwards_is_the_other_way_round(yard):
    fill(yard, 1500)
    yard.queue.settle([yard.queue.state.withdraw([(10, 1400)])[0]])
    found, walk = walked(yard, yard.queue, backwards=True)
    assert offsets(found) == [*range(1499, 1399, -1), *range(9, -1, -1)]
    assert walk.rest is None


@pytest.mark.parametrize("backwards", [False, True])
def test_a_walk_ends_with_its_budget_and_another_goes_on(yard, backwards):
    fill(yard, 100)
    seen, first, stop = [], 0, 1 << 40
    while True:
        found, walk = walked(
            yard, yard.queue, first=first, stop=stop, backwards=backwards, scanned_max=30
        )
        seen += offsets(found)
        if walk.rest is None:
            break
        first, stop = walk.rest
    assert seen == (list(range(100))[::-1] if backwards else list(range(100)))


@given(settled=st.sets(st.integers(0, 59)), wanted=st.none() | st.sets(st.integers(0, 70)))
def test_every_unsettled_message_is_met_once(settled, wanted):
    yard = Yard()
    fill(yard, 60)
    for offset in settled:
        yard.queue.settle(yard.queue.state.withdraw([(offset, offset + 1)]))
    left = [at for at in range(60) if at not in settled and (wanted is None or at in wanted)]
    chosen = None if wanted is None else RangeSet((at, at + 1) for at in wanted)
    for backwards in (False, True):
        found, _ = walked(yard, yard.queue, MessageFilter(offsets=chosen), backwards=backwards)
        assert offsets(found) == (left[::-1] if backwards else left)


def test_what_cannot_be_read_is_passed_over(yard):
    for _ in range(3):
        fill(yard, 1)
    yard.stage.log("q").damaged.add(1)
    found, walk = walked(yard, yard.queue)
    assert offsets(found) == [0, 2]
    assert walk.rest is None


def test_large_messages_are_read_a_few_at_a_time(yard, monkeypatch):
    monkeypatch.setattr(browsing, "SLICE_BYTES", 100)
    fill(yard, 200)
    found, walk = walked(yard, yard.queue)
    assert len(found) == 200
    assert walk._records == browsing.SLICE_RECORDS_MIN  # one for each message, however small


def test_a_stream_is_looked_into_alike(yard):
    stream = yard.declare("s", {"x-queue-type": "stream"})
    fill(yard, 3, stream)
    found, _ = walked(yard, stream)
    assert [(seen.offset, seen.state) for seen in found] == [
        (at, MessageState.READY) for at in range(3)
    ]


def test_what_waits_for_its_time_is_told_from_what_a_consumer_has(yard):
    quorum = yard.declare(
        "quorum",
        {
            "x-queue-type": "quorum",
            "x-delayed-retry-type": "all",
            "x-delayed-retry-min": 1000,
        },
    )
    fill(yard, 2, quorum)
    for _ in range(2):
        quorum.get()
    quorum.return_([(0, 1)])
    found, _ = walked(yard, quorum)
    assert [seen.state for seen in found] == [MessageState.DELAYED, MessageState.UNACKED]


@pytest.mark.covers("C-214")
@pytest.mark.parametrize(
    ("criteria", "expected"),
    [
        (MessageFilter(message_ids=frozenset({"id1", "id3"})), [1, 3]),
        (MessageFilter(states=frozenset({MessageState.UNACKED})), [0]),
        (MessageFilter(headers=(("n", "2"),)), [2]),
        (MessageFilter(headers=(("even", "true"),)), [0, 2]),
        (MessageFilter(headers=(("absent", ""),)), []),
        (MessageFilter(text=b"dy3"), [3]),
        (MessageFilter(routing_key=b"k1"), [1]),
        (MessageFilter(exchange=b"x"), [0, 1, 2, 3]),
        (MessageFilter(exchange=b"y"), []),
        (MessageFilter(since_ms=1_700_000_002_000), [2, 3]),
        (MessageFilter(until_ms=1_700_000_001_000), [0]),
        (MessageFilter(text=b"body", routing_key=b"k2"), [2]),
    ],
)
def test_all_that_is_stated_must_fit(yard, criteria, expected):
    for number in range(4):
        headers = {"n": number, "even": number % 2 == 0}
        body, key = b"body%d" % number, b"k%d" % number
        yard.publish(yard.queue, body, key, message_id=f"id{number}", headers=headers)
        yard.stage.now += 1000
    yard.queue.get()
    assert offsets(walked(yard, yard.queue, criteria)[0]) == expected
    assert criteria.states_something


def test_one_message_is_found_by_its_offset(yard):
    fill(yard, 3)
    yard.queue.settle(yard.queue.state.withdraw([(1, 2)]))
    found = []

    async def look(offset):
        found.append(await find(yard.queue, offset))

    for offset in (0, 1, 7):
        yard.stage.spawn(look(offset))
    yard.stage.run()
    assert [seen and seen.message.body for seen in found] == [b"0", None, None]


@pytest.mark.parametrize("backwards", [False, True])
def test_a_slice_that_takes_long_is_looked_at_in_parts(yard, backwards):
    fill(yard, 50)
    looks = count(step=browsing.SLICE_NS_MAX // 5)
    yard.queue.turn.clock_ns = lambda: next(looks)
    walk, parts = BrowseCursor(yard.queue, 0, 50, backwards=backwards), []

    async def go():
        async for seen in walk.matching(MessageFilter()):
            parts.append(offsets(seen))  # noqa: PERF401

    yard.stage.spawn(go())
    yard.stage.run()
    expected = list(range(50))
    assert [offset for part in parts for offset in part] == expected[:: -1 if backwards else 1]
    assert max(map(len, parts)) <= 5
