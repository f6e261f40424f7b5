from hypothesis import given
from hypothesis import strategies as st

from leveret.core.settings.queue_settings import Rate, rate_of
from leveret.features.rates.rules import TokenBucket, retry_after_seconds

RATES = st.builds(Rate, st.integers(1, 5000), st.integers(1, 5000))


@given(RATES, st.lists(st.tuples(st.integers(0, 3000), st.integers(0, 200)), max_size=50))
def test_no_more_passes_than_the_burst_and_what_the_time_brings(rate, steps):
    bucket, now, passed = TokenBucket(rate, 0), 0, 0
    for elapsed_ms, wanted in steps:
        now += elapsed_ms
        taken = min(wanted, bucket.available(now))
        bucket.take(taken, now)
        passed += taken
        assert passed * 1000 <= rate.burst * 1000 + now * rate.per_second


# A burst that a millisecond fills gives back less: what does not fit in is lost.
@given(st.builds(Rate, st.integers(1, 5000), st.integers(10, 5000)), st.integers(1, 20_000))
def test_whoever_takes_all_there_is_gets_the_rate(rate, seconds):
    seconds = seconds % 20 + 1
    bucket, passed = TokenBucket(rate, 0), 0
    for now in range(0, seconds * 1000 + 1, 1):
        available = bucket.available(now)
        bucket.take(available, now)
        passed += available
    expected = rate.burst + seconds * rate.per_second
    assert expected - 1 <= passed <= expected


@given(RATES, st.integers(0, 10_000), st.integers(1, 10_000))
def test_the_wait_is_exactly_as_long_as_it_must_be(rate, taken, wanted):
    bucket = TokenBucket(rate, 0)
    bucket.take(taken, 0)
    wait_ms = bucket.wait_ms(wanted, 0)
    wanted = min(wanted, rate.burst)
    if wait_ms:
        assert bucket.available(wait_ms - 1) < wanted
    assert bucket.available(wait_ms) >= wanted


def test_what_was_taken_too_much_is_paid_back():
    bucket = TokenBucket(Rate(10, 10), 0)
    bucket.take(30, 0)
    assert bucket.available(2000) == 0
    assert bucket.wait_ms(1, 2000) == 100
    assert bucket.available(2100) == 1


def test_a_rate_of_nothing_lets_nothing_pass():
    bucket = TokenBucket(Rate(0, 1), 0)
    assert bucket.available(10**9) == 0
    assert bucket.wait_ms(1, 10**9) is None
    bucket.change(Rate(1, 1), 10**9)
    assert bucket.available(10**9 + 1000) == 1


def test_a_clock_that_is_set_back_stops_nothing():
    bucket = TokenBucket(Rate(10, 10), 1_000_000)
    bucket.take(10, 1_000_000)
    assert bucket.available(500) == 0
    assert bucket.available(600) == 1


def test_a_change_keeps_what_is_owed_and_no_more_than_the_new_burst():
    bucket = TokenBucket(Rate(100, 100), 0)
    bucket.change(Rate(10, 5), 0)
    assert bucket.available(0) == 5
    bucket.take(15, 0)
    bucket.change(Rate(1000, 1000), 0)
    assert bucket.available(0) == 0
    assert bucket.available(11) == 1


def test_how_limits_are_read():
    assert rate_of({}, "publish") is None
    assert rate_of({"publish-rate": -1}, "publish") is None
    assert rate_of({"publish-rate": 7}, "publish") == Rate(7, 7)
    assert rate_of({"publish-rate": 7, "publish-burst": 3}, "publish") == Rate(7, 3)
    assert rate_of({"publish-rate": 7, "publish-burst": -1}, "publish") == Rate(7, 7)
    assert rate_of({"publish-rate": 1000, "publish-burst": 3}, "publish") == Rate(1000, 50)
    assert rate_of({"publish-rate": 0}, "publish") == Rate(0, 1)
    assert rate_of({"consume-rate": 1, "publish-rate": 2}, "consume") == Rate(1, 1)


def test_retry_after_is_in_whole_seconds():
    assert [retry_after_seconds(ms) for ms in (0, 1, 1000, 1001)] == [1, 1, 1, 2]
