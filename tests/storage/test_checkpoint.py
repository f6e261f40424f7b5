"""Control batches and close marks, written down and read again."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leveret.errors import CorruptBatchError, NewerFormatError
from leveret.ports.ranges import RangeSet
from leveret.storage.checkpoint import (
    RecoveredState,
    TransactionPart,
    apply_payload,
    checkpoint_payload,
    erased_payload,
    part_payload,
    resolved_payload,
    retained_payload,
    return_payload,
)
from tests.ports.test_returns import COUNTS, RANGES, counts_of, returns_of


@given(COUNTS, COUNTS, RANGES)
def test_what_was_written_down_is_read_again(earlier, counts, ranges):
    told = RecoveredState()
    apply_payload(checkpoint_payload(RecoveredState(RangeSet(ranges), returns_of(earlier))), told)
    assert (counts_of(told.returns), list(told.settled)) == (earlier, list(RangeSet(ranges)))
    apply_payload(return_payload(returns_of(counts), RangeSet([(0, 41)])), told)
    assert counts_of(told.returns) == {**earlier, **counts}
    assert list(told.settled) == list(RangeSet(ranges))


PARTS = st.dictionaries(
    st.integers(1, 2**64 - 1),
    st.builds(
        TransactionPart,
        st.integers(0, 50),
        st.integers(50, 99),
        RANGES.map(RangeSet),
        st.booleans(),
    ),
    min_size=1,
    max_size=4,
)


def parts_of(told):
    found = told.unresolved.items()
    return [(each, p.first, p.stop, list(p.settles), p.erases) for each, p in found]


@given(PARTS, COUNTS, RANGES, RANGES, RANGES, st.none() | st.integers(0, 99))
def test_parts_of_transactions_are_read_again(parts, counts, ranges, more, erased, retained_from):
    before, told = (
        RecoveredState(
            *(RangeSet(ranges), returns_of(counts), RangeSet(more), parts),
            *(RangeSet(erased), retained_from),
        ),
        RecoveredState(),
    )
    told.unresolved[0] = TransactionPart(0, 1)  # a checkpoint knows better
    apply_payload(checkpoint_payload(before), told)
    assert parts_of(told) == parts_of(before)
    assert (counts_of(told.returns), list(told.settled)) == (counts, list(RangeSet(ranges)))
    assert list(told.undone) == list(RangeSet(more))
    assert list(told.erased) == list(RangeSet(erased))
    assert told.retained_from == retained_from
    for erases in (True, False):
        apply_payload(part_payload(0, TransactionPart(1, 2, RangeSet(more), erases)), told)
        part = told.unresolved[0]
        assert (list(part.settles), part.erases) == (list(RangeSet(more)), erases)
    apply_payload(erased_payload(RangeSet([(7, 9)])), told)
    assert list(told.erased) == list(RangeSet([*erased, (7, 9)]))
    apply_payload(retained_payload(77), told)
    assert told.retained_from == 77
    apply_payload(resolved_payload(list(parts), RangeSet([(98, 99)]), RangeSet(more)), told)
    assert list(told.unresolved) == [0]
    assert (98 in told.undone, 97 in told.undone) == (True, 97 in RangeSet(more))
    assert list(told.settled) == list(RangeSet([*ranges, *more]))


@pytest.mark.parametrize(
    "payload",
    [
        b"",
        b"\x01\x05",
        b"\x03",
        b"\x03\x00\x00",
        b"\x03\x01\x00\x00\x00" + bytes(23),
        b"\x03\x01\x00\x00\x00" + bytes(24),  # a range of nothing
        b"\x03\x01\x00\x00\x00" + bytes(14) + b"\x01\x00" + bytes(8),  # and one of too much
        b"\x04\x00\x00\x00\x00\x01",
        b"\x05" + bytes(7),
        b"\x06\x01\x00\x00\x00" + bytes(7),
        b"\x07\x01\x00\x00\x00" + bytes(24) + b"\x01\x00\x00\x00" + bytes(15),
        b"\x00",
    ],
)
def test_what_makes_no_sense_is_refused(payload):
    with pytest.raises(CorruptBatchError):
        apply_payload(payload, RecoveredState())


def test_a_kind_of_a_newer_release_is_refused():
    with pytest.raises(NewerFormatError, match="newer release"):
        apply_payload(b"\x0d", RecoveredState())
