"""Samples in arrays against a plain list of everything that was ever sampled."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leveret.core.statistics.series import BASIC, GLOBAL, SampleRetention, Samples, Series

NAMES = ("publish", "ack", "messages")
steps = st.tuples(
    st.integers(1, 60),  # steps of the clock since the last sample
    st.dictionaries(st.sampled_from(NAMES), st.integers(0, 2**63), max_size=3),
)


class Plain:
    """The same as Samples, with nothing forgotten."""

    def __init__(self, step_ms: int) -> None:
        self.step_ms = step_ms
        self.taken: list[tuple[int, dict[str, int]]] = []

    def add(self, time_ms: int, values: dict[str, int]) -> None:
        if self.taken and self.taken[-1][0] // self.step_ms == time_ms // self.step_ms:
            values = {**self.taken.pop()[1], **values}
        self.taken.append((time_ms, values))

    def at(self, time_ms: int) -> tuple[int, ...]:
        before = [values for taken_ms, values in self.taken if taken_ms <= time_ms]
        return tuple(before[-1].get(name, 0) if before else 0 for name in NAMES)


@given(st.lists(steps, max_size=80), st.integers(1, 5), st.integers(1, 20))
def test_samples_are_as_a_plain_list_would_have_them(taken, step, count):
    retention = SampleRetention(step * count * 1000, step * 1000)
    samples, plain, now_ms = Samples(retention), Plain(step * 1000), 0
    for after, values in taken:
        now_ms += after * 1000
        samples.add(now_ms, values)
        plain.add(now_ms, values)
        assert len(samples.times) <= retention.count_max + 1
        for ago in range(count + 1):
            time_ms = now_ms - ago * step * 1000
            assert samples.at(time_ms, NAMES) == plain.at(time_ms)
    other = Samples(retention)
    other.load(samples.dump())
    assert (other.times, other.columns) == (samples.times, samples.columns)


def test_a_clock_that_is_set_back_loses_samples_and_nothing_else():
    samples = Samples(SampleRetention(60_000, 5_000))
    for time_ms in (100_000, 50_000, 105_000):
        samples.add(time_ms, {"publish": time_ms})
    assert list(samples.times) == [100_000, 105_000]
    assert samples.at(104_000, ("publish",)) == (100_000,)


@pytest.mark.parametrize(
    "head",
    [
        None,
        [],
        {},
        {"step_ms": 1_000, "count": 0, "columns": []},
        {"step_ms": 5_000, "count": -1, "columns": []},
        {"step_ms": 5_000, "count": 10**9, "columns": []},
        {"step_ms": 5_000, "count": 0, "columns": "publish"},
        {"step_ms": 5_000, "count": 0, "columns": [str(i) for i in range(65)]},
        {"step_ms": 5_000, "count": 3, "columns": ["publish"]},
        {"step_ms": 5_000, "count": 2, "columns": []},
    ],
)
def test_what_is_damaged_is_not_taken_over(head):
    samples = Samples(SampleRetention(60_000, 5_000))
    samples.add(5_000, {"publish": 1})
    rest = bytes(16)  # two equal times, or something else altogether
    with pytest.raises(ValueError, match=r".+"):
        samples.load(b"\xff" if head is None else json.dumps(head).encode() + b"\n" + rest)
    assert samples.at(5_000, ("publish",)) == (1,)


def test_rates_are_those_of_the_last_interval_only():
    series = Series()
    series.add(5_000, {"publish": 10})
    assert series.rate("publish", 5_000, 5_000) == 2.0
    series.add(15_000, {"publish": 60, "ack": 5})
    assert series.rate("publish", 15_000, 5_000) == 10.0
    assert series.rate("ack", 15_000, 5_000) == 1.0
    assert series.rate("publish", 20_000, 5_000) == 0.0  # nothing has come since
    assert series.rate("publish", 15_000, 0) == 0.0


def test_what_an_earlier_run_has_counted_is_added_to_the_history():
    series = Series(BASIC)
    series.base = {"publish": 100, "ack": 7}
    series.add(5_000, {"publish": 1})
    assert series.retained[0].at(5_000, ("publish", "ack")) == (101, 7)
    assert series.last == {"publish": 1}


@pytest.mark.parametrize("retentions", [GLOBAL, BASIC])
def test_a_week_is_kept_in_arrays_of_some_kilobytes(retentions):
    series = Series(retentions)
    values = dict.fromkeys(
        ["publish", "deliver", "ack", "messages", "messages_ready", "bytes_out"], 1
    )
    for time_ms in range(0, 8 * 24 * 3_600_000, 60_000):
        series.add(time_ms, values)
    arrays = [each for s in series.retained for each in (s.times, *s.columns.values())]
    assert sum(len(each) * each.itemsize for each in arrays) < 32_000
    assert series.finest(600_000).retention.step_ms == 5_000
    assert series.finest(86_400_000 * 30).retention.step_ms == 3_600_000
    assert [s.retention.step_ms for s in series.kept][-1] == 3_600_000


class TestShareWithout:
    """Of the last minute, in twelve steps of five seconds."""

    @pytest.fixture
    def samples(self) -> Samples:
        return Samples(SampleRetention(605_000, 5_000))

    def share(self, samples: Samples, tick_ms: int) -> float:
        return samples.share_without("messages_ready", tick_ms, 60_000)

    def test_what_was_never_there_was_always_0(self, samples: Samples) -> None:
        samples.add(100_000, {"publish": 1})
        assert self.share(samples, 100_000) == 1.0

    def test_each_sample_stands_for_its_step(self, samples: Samples) -> None:
        for number in range(24):
            samples.add(100_000 + 5_000 * number, {"messages_ready": number % 4 == 0})
        assert self.share(samples, 215_000) == 0.75

    def test_what_rests_stays_as_it_was(self, samples: Samples) -> None:
        samples.add(100_000, {"messages_ready": 0})
        samples.add(105_000, {"messages_ready": 7})
        assert self.share(samples, 105_000) == 5 / 10
        assert self.share(samples, 115_000) == 5 / 20
        assert self.share(samples, 500_000) == 0.0
        samples.add(505_000, {"messages_ready": 0})
        assert self.share(samples, 505_000) == pytest.approx(5 / 60)
        assert self.share(samples, 900_000) == 1.0

    def test_a_sample_of_the_future_counts_for_nothing(self, samples: Samples) -> None:
        """The clock was set back since."""
        samples.add(500_000, {"messages_ready": 1})
        assert self.share(samples, 100_000) == 0.0
