import time

import pytest

from leveret.ports.clock import SystemClock, since_1970_ms


@pytest.mark.parametrize(
    ("seconds", "nanoseconds", "expected_ms"),
    [(1_700_000_000, 999_999_999, 1_700_000_000_999), (0, 1_999_999, 1), (-1, 999_999_999, 0)],
)
def test_a_time_before_1970_is_its_beginning(seconds, nanoseconds, expected_ms):
    assert since_1970_ms(seconds, nanoseconds) == expected_ms


def test_the_clocks_are_those_of_python():
    clock = SystemClock()
    for ours, pythons in (
        (clock.wall_ms, lambda: time.time_ns() // 1_000_000),
        (clock.monotonic_ms, lambda: time.monotonic_ns() // 1_000_000),
    ):
        before = pythons()
        assert before <= ours() <= pythons()
