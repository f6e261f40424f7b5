"""Counters and histograms against sums made another way."""

from __future__ import annotations

import bisect

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leveret.ports import counters
from leveret.ports.counters import ACK, DELIVER, NAMES, Counters, DeliveryStatistics, Histogram


def test_each_counter_has_its_name():
    for number, name in enumerate(NAMES):
        assert getattr(counters, name.upper()) == number
        own = Counters()
        own.count(number, number + 1)
        assert own.counted() == {name: number + 1}
        assert own.value(number) == number + 1


@pytest.mark.parametrize("counter", [-1, len(NAMES)])
def test_there_are_no_others(counter):
    with pytest.raises(IndexError):
        Counters().count(counter)
    with pytest.raises(IndexError):
        Counters().value(counter)
    with pytest.raises(IndexError):
        DeliveryStatistics(counter, *(Counters() for _ in range(4)))


def test_who_has_counted_something_has_moved():
    own = Counters()
    assert not own.moved
    own.count(ACK, 3)
    assert own.moved
    own.moved = False
    own.take_in(own)
    assert own.moved
    assert own.value(ACK) == 6


def test_what_is_handed_out_counts_for_all_concerned():
    latency = Histogram((10,))
    concerned = [Counters() for _ in range(4)]
    flow = DeliveryStatistics(DELIVER, *concerned, latency)
    flow.delivered(3, 100, False, 0)
    flow.delivered(2, 50, True, 0)
    flow.acknowledged(4)
    flow.found_empty()
    expected = {"deliver": 5, "bytes_out": 150, "redeliver": 2, "ack": 4, "get_empty": 1}
    for each in (flow, *concerned):
        assert each.counted() == expected
    assert latency.counts == (0, 3)  # what came back once has waited for its consumer


def test_a_message_from_the_future_has_not_waited():
    latency = Histogram((10,))
    DeliveryStatistics(DELIVER, *(Counters() for _ in range(4)), latency).delivered(
        1, 1, False, 1 << 62
    )
    assert (latency.counts, latency.sum) == ((1, 0), 0)


@given(
    st.sets(st.integers(0, 2**40), min_size=1, max_size=24).map(sorted),
    st.lists(st.tuples(st.integers(0, 2**41), st.integers(0, 1000)), max_size=50),
)
def test_a_histogram_sorts_values_into_its_buckets(bounds, values):
    histogram = Histogram(bounds)
    expected = [0] * (len(bounds) + 1)
    for value, times in values:
        histogram.observe(value, times)
        expected[bisect.bisect_left(bounds, value)] += times
    assert histogram.bounds == tuple(bounds)
    assert histogram.counts == tuple(expected)
    assert histogram.count == sum(expected)
    assert histogram.sum == sum(value * times for value, times in values)


@pytest.mark.parametrize("bounds", [(), (2, 1), (1, 1), range(25)])
def test_bounds_rise(bounds):
    with pytest.raises(ValueError, match=r"[(,)]"):
        Histogram(bounds)
