"""The retry_policy of attempts: its waits, what may be stated, what headers tell."""

from dataclasses import replace
from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leveret.core.settings.retry_policy import (
    ATTEMPTS,
    DELAY_MS_MAX,
    RETRY_ARGUMENTS,
    RetryPolicy,
    retry_policy_of,
)
from leveret.features.retry.rules import (
    Attempts,
    attempts_of,
    failed_headers,
    header_problem,
    message_retry_policy,
    without_attempts,
)
from leveret.ports.tables import decode_raw_table, encode_table


def raw(**headers):
    return decode_raw_table(encode_table({k.replace("_", "-"): v for k, v in headers.items()}))


def stated(**values):
    return retry_policy_of({k.replace("_", "-"): v for k, v in values.items()}.get)


def waits(retry_policy, count, chance=0.5):
    return [retry_policy.wait_ms(attempt, chance) for attempt in range(1, count + 1)]


@pytest.mark.covers("C-205")
def test_waits_grow_up_to_the_longest():
    retry_policy = stated(retry_delay=100, retry_multiplier=3, retry_max_delay=2000)
    assert waits(retry_policy, 5) == [100, 300, 900, 2000, 2000]
    assert waits(stated(retry_delay=5), 3) == [5, 10, 20]


@pytest.mark.covers("C-205")
def test_waits_are_those_that_were_written_out_and_the_last_goes_on():
    retry_policy = stated(retry_delays=[10, 50, 20])
    assert waits(retry_policy, 5) == [10, 50, 20, 20, 20]
    assert retry_policy.attempts_max == 3
    assert stated(retry_delays=[10, 50], retry_max_attempts=7).attempts_max == 7


def test_any_argument_turns_retries_on():
    assert stated() is None
    assert stated(retry_max_attempts=3) == RetryPolicy(attempts_max=3)
    assert stated(retry_on="timeout").attempts_max == ATTEMPTS


@pytest.mark.covers("C-205")
def test_which_failures_are_retried():
    assert stated(retry_delay=1).on == {"rejected"}
    every = ["reject", "requeue", "disconnect", "timeout"]
    assert stated(retry_on=every).on == {"rejected", "requeued", "disconnected", "timeout"}


LADDERS = st.builds(
    RetryPolicy,
    delays_ms=st.lists(st.integers(0, DELAY_MS_MAX), max_size=5).map(tuple),
    delay_ms=st.integers(0, DELAY_MS_MAX),
    multiplier=st.floats(1, 1000),
    delay_ms_max=st.integers(0, DELAY_MS_MAX),
    jitter=st.floats(0, 1),
)
CHANCES = st.floats(0, 1, exclude_max=True)


@given(LADDERS, st.integers(1, 1_000_000), CHANCES)
def test_no_wait_is_longer_than_the_longest_whatever_chance_says(retry_policy, attempt, chance):
    assert 0 <= retry_policy.wait_ms(attempt, chance) <= retry_policy.delay_ms_max


@given(LADDERS, st.integers(1, 100))
def test_without_a_plan_of_its_own_a_ladder_never_shortens(retry_policy, attempt):
    retry_policy = replace(retry_policy, delays_ms=())
    assert retry_policy.wait_ms(attempt, 0.5) <= retry_policy.wait_ms(attempt + 1, 0.5)


@pytest.mark.covers("C-205")
@given(st.integers(0, 100_000), st.floats(0, 1), CHANCES)
def test_jitter_moves_a_wait_by_no_more_than_its_part(delay, jitter, chance):
    wait = RetryPolicy(delay_ms=delay, jitter=jitter).wait_ms(1, chance)
    assert delay * (1 - jitter) - 1 <= wait <= delay * (1 + jitter) + 1


WRONG = {
    "retry-delays": [[], [-1], ["1"], [True], [1.5], 5, None, "1", [0] * 101, [DELAY_MS_MAX + 1]],
    "retry-delay": [-1, "1", None, True, 1.5, DELAY_MS_MAX + 1],
    "retry-multiplier": [
        0,
        0.99,
        -1,
        "0.5",
        "1e3",
        "-2",
        " 2",
        "٢",
        None,
        True,
        float("nan"),
        float("inf"),
        1001,
    ],
    "retry-max-delay": [-1, "1", 1.0, DELAY_MS_MAX + 1],
    "retry-jitter": [-0.1, 1.1, "1.1", "", "nan", None, True, float("nan"), Decimal(2)],
    "retry-max-attempts": [-1, 1.0, "3", True, 1_000_001],
    "retry-keep-order": ["queue", True, 1, None, ["key"]],
    "retry-on": ["", "nack", [], ["reject", 1], [["reject"]], 1, None, {}],
}
RIGHT = {
    "retry-delays": [[0], [1, 2, DELAY_MS_MAX], [0] * 100],
    "retry-delay": [0, 1, DELAY_MS_MAX],
    "retry-multiplier": [1, 2.0, Decimal("1.5"), "1.5", "2", 1000],
    "retry-max-delay": [0, 5],
    "retry-jitter": [0, 1, 0.5, Decimal("0.25"), "0.25"],
    "retry-max-attempts": [0, 1, 1_000_000],
    "retry-keep-order": ["key"],
    "retry-on": ["timeout", ["reject"], ["reject", "requeue", "disconnect", "timeout"]],
}


@pytest.mark.parametrize("key", RETRY_ARGUMENTS)
def test_values_are_checked(key):
    for value in WRONG[key]:
        assert RETRY_ARGUMENTS[key](value) is not None, value
    for value in RIGHT[key]:
        assert RETRY_ARGUMENTS[key](value) is None, value
        retry_policy_of({key: value}.get).wait_ms(3, 0.1)


def test_a_message_may_bring_its_own_ladder():
    queues = RetryPolicy(attempts_max=9, delay_ms=7, jitter=0.0)
    assert message_retry_policy(queues, raw(x_other=1)) == queues
    assert waits(message_retry_policy(queues, raw(x_retry_delays=[1, 4])), 3) == [1, 4, 4]
    assert message_retry_policy(queues, raw(x_retry_delays=[1, 4])).attempts_max == 2
    both = message_retry_policy(queues, raw(x_retry_delays=[1, 4], x_retry_max_attempts=5))
    assert (both.delays_ms, both.attempts_max) == ((1, 4), 5)
    fewer = message_retry_policy(queues, raw(x_retry_max_attempts=1))
    assert (fewer.delay_ms, fewer.attempts_max) == (7, 1)


def test_a_message_with_a_wrong_ladder_is_refused():
    assert header_problem(raw(x_retry_delays=[1], x_retry_max_attempts=0)) is None
    assert header_problem(raw()) is None
    assert header_problem(raw(x_retry_max_attempts=-1)) == (
        "invalid header 'x-retry-max-attempts': \"expected an integer from 0 to 1000000\""
    )
    assert header_problem(raw(x_retry_delays="soon")).startswith("invalid header 'x-retry-delays'")


def test_what_headers_tell_can_be_read_again():
    own = raw(own=1)
    first = decode_raw_table(encode_table(failed_headers(own, Attempts(1), "rejected", 100)))
    assert attempts_of(first) == Attempts(1, 100)
    again = failed_headers(first, Attempts(2, attempts_of(first).first_at), "timeout", 160)
    read = decode_raw_table(encode_table(again))
    assert attempts_of(read) == Attempts(2, 100)
    assert again["x-last-failure-reason"] == "timeout"
    assert int(again["x-last-failure-at"]) == 160
    assert without_attempts(read) == own


def test_headers_that_make_no_sense_count_for_nothing():
    assert attempts_of(raw(x_retry_count="3", x_first_failure_at="yesterday")) == Attempts()
