import pytest
from hypothesis import given
from hypothesis import strategies as st

from leveret.perf.histogram import LatencyHistogram

values = st.one_of(st.integers(0, 2**64 - 1), st.integers(0, 300), st.integers(0, 10**9))


def filled(samples):
    histogram = LatencyHistogram()
    for sample in samples:
        histogram.record(sample)
    return histogram


@given(st.lists(values, min_size=1), st.floats(0, 1))
def test_percentile_is_at_most_one_bucket_above_the_exact_one(samples, share):
    exact = sorted(samples)[max(0, min(len(samples), -int(-share * len(samples) // 1)) - 1)]
    reading = filled(samples).percentile(share)
    nearest = min((s for s in samples if s >= exact * 0.99), default=exact)
    assert nearest <= reading * 1.0001
    assert reading <= max(samples)


@given(values)
def test_single_sample_is_every_percentile(sample):
    histogram = filled([sample])
    readings = {histogram.percentile(share) for share in (0.0, 0.5, 1.0)}
    assert readings == {sample} == {histogram.minimum, histogram.maximum}


@given(st.lists(values), st.lists(values))
def test_merging_counts_as_if_recorded_together(left, right):
    merged = filled(left)
    merged.merge(filled(right))
    assert merged.to_bytes() == filled(left + right).to_bytes()


@given(st.lists(values))
def test_bytes_bring_the_histogram_back(samples):
    histogram = filled(samples)
    assert LatencyHistogram.from_bytes(histogram.to_bytes()).to_bytes() == histogram.to_bytes()


def test_uniform_samples_have_the_percentiles_they_should():
    histogram = filled(range(1, 100_001))
    for share in (0.5, 0.75, 0.95, 0.99, 0.999):
        exact = share * 100_000
        assert exact <= histogram.percentile(share) <= exact * (1 + 1 / 128)


def test_clear_forgets_everything():
    histogram = filled([5, 6])
    histogram.clear()
    assert histogram.to_bytes() == LatencyHistogram().to_bytes()
    assert histogram.percentile(0.5) == histogram.minimum == histogram.maximum == 0


def test_bytes_of_the_wrong_length_are_refused():
    with pytest.raises(ValueError, match="not a histogram"):
        LatencyHistogram.from_bytes(b"short")
