"""Selection of dead letters for a redrive, and its rate."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leveret.features.dead_letter.redrive_rules import (
    NEXT,
    DeadLetter,
    DeadLetterFilter,
    Pace,
    RedriveState,
    dead_letter,
    revived_headers,
)
from leveret.ports.tables import Timestamp

HEADERS = {
    "own": 1,
    "x-death": [
        {
            "count": 1,
            "reason": "rejected",
            "queue": "q",
            "time": Timestamp(100),
            "exchange": "x",
            "routing-keys": ["k", "cc"],
        },
        {"count": 1, "reason": "expired", "queue": "older"},
    ],
    "x-first-death-queue": "older",
    "x-last-death-reason": "rejected",
    "x-retry-count": 2,
    "x-last-failure-reason": "timeout",
}
LETTER = dead_letter(7, "id", HEADERS, is_dead_letter=True)


def test_the_latest_death_tells_where_a_letter_came_from():
    assert (LETTER.reason, LETTER.queue, LETTER.exchange) == ("rejected", "q", "x")
    assert (LETTER.routing_keys, LETTER.died_at) == (("k", "cc"), 100)
    assert (LETTER.attempts, LETTER.last_failure) == (3, "timeout")


def test_a_history_that_a_client_wrote_is_none():
    assert dead_letter(7, None, HEADERS, is_dead_letter=False).queue is None
    assert dead_letter(7, None, {"x-death": ["?"]}, is_dead_letter=True).queue is None
    assert dead_letter(7, None, {"x-death": 5}, is_dead_letter=True).queue is None


@pytest.mark.covers("C-206")
@pytest.mark.parametrize(
    ("selection", "meant"),
    [
        (DeadLetterFilter(), True),
        (DeadLetterFilter(offsets=frozenset({7})), True),
        (DeadLetterFilter(offsets=frozenset({8})), False),
        (DeadLetterFilter(message_ids=frozenset({"id", "9"})), True),
        (DeadLetterFilter(message_ids=frozenset({"7"})), False),  # that is its offset
        (DeadLetterFilter(offsets=frozenset({7}), message_ids=frozenset({"8"})), False),
        (DeadLetterFilter(reason="rejected"), True),
        (DeadLetterFilter(reason="timeout"), True),
        (DeadLetterFilter(reason="expired"), False),
        (DeadLetterFilter(queue="q"), True),
        (DeadLetterFilter(queue="older"), False),
        (DeadLetterFilter(headers=(("own", "1"),)), True),
        (DeadLetterFilter(headers=(("own", "2"),)), False),
        (DeadLetterFilter(headers=(("other", "1"),)), False),
        (DeadLetterFilter(since=100, until=101), True),
        (DeadLetterFilter(since=101), False),
        (DeadLetterFilter(until=100), False),
        (DeadLetterFilter(reason="rejected", queue="other"), False),
    ],
)
def test_all_that_is_stated_must_fit(selection, meant):
    assert selection.has(LETTER) is meant


def test_who_does_not_tell_when_it_died_is_in_no_time_range():
    assert not DeadLetterFilter(since=0).has(DeadLetter(1, None, {}))


def test_nothing_of_deaths_and_attempts_goes_back():
    assert revived_headers(HEADERS) == {"own": 1}


@given(
    st.floats(0.1, 10_000),
    st.lists(st.tuples(st.integers(0, 3000), st.integers(1, 200)), min_size=1),
)
def test_no_more_go_than_the_pace_allows(rate, steps):
    pace, now, gone = Pace(rate, 0), 0, 0
    for passed, wanted in steps:
        now += passed
        gone += pace.allowance(now, wanted)
        assert gone <= 1 + now * rate / 1000 + max(1, rate / 4)


@given(st.floats(0.1, 10_000))
def test_who_waits_as_long_as_told_may_go(rate):
    pace = Pace(rate, 0)
    while pace.allowance(0, 1):
        pass
    wait_ms = pace.wait_ms
    assert wait_ms > 0
    assert pace.allowance(wait_ms + 1, 1) == 1


def test_without_a_pace_all_may_go_at_once():
    pace = Pace(None, 0)
    assert (pace.allowance(0, 1000), pace.wait_ms) == (1000, 0)


def test_every_phase_is_in_the_table():
    assert set(NEXT) == set(RedriveState)
    assert [phase for phase in RedriveState if phase.has_ended] == ["cancelled", "done", "failed"]
    assert RedriveState.PAUSED.may_become(RedriveState.RUNNING)
    assert not RedriveState.DONE.may_become(RedriveState.RUNNING)
