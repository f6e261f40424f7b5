"""Numbering publishers against a naive one that remembers all that it has taken."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leveret.features.dedup.sequences import (
    Position,
    SequenceHeaders,
    Verdict,
    expected,
    judge,
    read_sequence_headers,
)

GOOD = {"x-producer-id": "p", "x-producer-epoch": 0, "x-producer-seq": 7}


def test_a_claim_is_read():
    assert read_sequence_headers(GOOD) == SequenceHeaders("p", 0, 7)


@pytest.mark.parametrize(
    ("header", "value"),
    [
        ("x-producer-id", 1),
        ("x-producer-id", ""),
        ("x-producer-id", "é" * 128),
        ("x-producer-epoch", -1),
        ("x-producer-epoch", None),
        ("x-producer-epoch", True),
        ("x-producer-seq", "7"),
        ("x-producer-seq", 1 << 63),
        ("x-producer-seq", 1.0),
    ],
)
def test_a_wrong_header_is_named(header, value):
    with pytest.raises(ValueError, match=f"'{header}'"):
        read_sequence_headers({**GOOD, header: value})


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 6)), max_size=60))
def test_each_number_is_taken_once_in_order(claims):
    known, taken = None, []
    for epoch, sequence in claims:
        newest = max((each[0] for each in taken), default=None)
        of_epoch = [each[1] for each in taken if each[0] == epoch]
        verdict = judge(known, SequenceHeaders("p", epoch, sequence))
        if newest is not None and epoch < newest:
            assert verdict is Verdict.FENCED
        elif sequence in of_epoch:
            assert verdict is Verdict.SEEN
        elif sequence == len(of_epoch) == expected(known, epoch):
            assert verdict is Verdict.NEXT
            taken.append((epoch, sequence))
            known = Position(epoch, sequence)
        else:
            assert verdict is Verdict.GAP
