"""What control batches and close marks say, written down and read again."""

import pytest
from hypothesis import given

from leveret.errors import CorruptBatchError
from leveret.ports.ranges import RangeSet
from leveret.ports.returns import Returns
from leveret.storage.checkpoint import (
    CloseMark,
    apply_payload,
    checkpoint_payload,
    return_payload,
)
from tests.ports.test_returns import COUNTS, RANGES, counts_of, returns_of


@given(COUNTS, COUNTS, RANGES)
def test_what_was_written_down_is_read_again(earlier, counts, ranges):
    settled, returns = RangeSet(), Returns()
    apply_payload(checkpoint_payload(RangeSet(ranges), returns_of(earlier)), settled, returns)
    assert (counts_of(returns), list(settled)) == (earlier, list(RangeSet(ranges)))
    apply_payload(return_payload(returns_of(counts), RangeSet([(0, 41)])), settled, returns)
    assert counts_of(returns) == {**earlier, **counts}
    assert list(settled) == list(RangeSet(ranges))


@given(COUNTS, RANGES)
def test_a_close_mark_is_read_again(counts, ranges):
    mark = CloseMark(1, 2, 3, 4, 5, checkpoint_payload(RangeSet(ranges), returns_of(counts)))
    value = mark.to_bytes()
    assert value[0] == (3 if counts else 2)
    assert CloseMark.from_bytes(value) == mark


@pytest.mark.parametrize(
    "payload",
    [
        b"",
        b"\x05",
        b"\x03",
        b"\x03\x00\x00",
        b"\x03\x01\x00\x00\x00" + bytes(23),
        b"\x03\x01\x00\x00\x00" + bytes(24),  # a range of nothing
        b"\x03\x01\x00\x00\x00" + bytes(14) + b"\x01\x00" + bytes(8),  # and one of too much
        b"\x04\x00\x00\x00\x00\x01",
    ],
)
def test_what_makes_no_sense_is_refused(payload):
    with pytest.raises(CorruptBatchError):
        apply_payload(payload, RangeSet(), Returns())
