"""The circuit breaker: when it opens, how long it waits, and that one attempt closes it."""

from leveret.links.breaker import BreakerState, CircuitBreaker
from leveret.links.settings import LinkSettings

SETTINGS = LinkSettings(failures_max=3, retry_ms_min=100, retry_ms_max=1000, steady_ms=5000)


def breaker(draw=1.0):
    return CircuitBreaker(SETTINGS, lambda: draw)


def test_it_opens_after_failures_in_a_row():
    tested = breaker()
    now = 0
    for _ in range(2):
        assert tested.may_try(now)
        tested.failed(now)
        assert tested.state is BreakerState.CLOSED
        now = tested.retry_at_ms
    assert tested.may_try(now)
    tested.failed(now)
    assert tested.state is BreakerState.OPEN


def test_a_success_ends_the_row():
    tested = breaker()
    for now in (0, 1000, 2000, 3000):
        tested.failed(now)
        tested.succeeded(now)
    assert tested.state is BreakerState.CLOSED


def test_one_attempt_at_a_time_while_it_is_half_open():
    tested = breaker()
    tested.trip(0)
    assert not tested.may_try(tested.retry_at_ms - 1)
    assert tested.may_try(tested.retry_at_ms)
    assert tested.state is BreakerState.HALF_OPEN
    assert not tested.may_try(tested.retry_at_ms + 1)
    tested.succeeded(tested.retry_at_ms + 1)
    assert tested.state is BreakerState.CLOSED


def test_waits_double_up_to_the_longest():
    tested, now, waits = breaker(), 0, []
    for _ in range(6):
        tested.trip(now)
        waits.append(tested.retry_at_ms - now)
        now = tested.retry_at_ms
        assert tested.may_try(now)
    assert waits == [100, 200, 400, 800, 1000, 1000]


def test_half_of_a_wait_is_drawn():
    tested = breaker(draw=0.0)
    tested.trip(0)
    assert tested.retry_at_ms == 50


def test_a_link_that_holds_makes_waits_short_again():
    tested = breaker()
    for now in (0, 10_000, 20_000):
        tested.trip(now)
        tested.succeeded(now + 1)
    tested.trip(20_002)
    assert tested.retry_at_ms - 20_002 == 200
    tested.succeeded(30_000)
    tested.trip(34_999)
    assert tested.retry_at_ms - 34_999 == 400
    tested.succeeded(40_000)
    tested.trip(45_000)
    assert tested.retry_at_ms - 45_000 == 100


def test_another_address_closes_it():
    tested = breaker()
    tested.trip(0)
    tested.reset()
    assert tested.state is BreakerState.CLOSED
    assert tested.may_try(0)
