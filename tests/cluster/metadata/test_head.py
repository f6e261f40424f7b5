"""Head of the sequence."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leveret.cluster.metadata.encoding import MalformedError, seal
from leveret.cluster.metadata.head import (
    MetadataHead,
    SnapshotReference,
    decode_head,
    encode_head,
)
from tests.cluster.metadata.samples import damaged

NUMBERS = st.integers(0, 2**63)
HEAD = MetadataHead(b"c" * 16, 9, 100, SnapshotReference(5, 77, 2, 1000))


@given(
    NUMBERS, NUMBERS, st.builds(SnapshotReference, NUMBERS, NUMBERS, st.integers(0, 100), NUMBERS)
)
def test_a_head_is_read_as_it_was_written(beyond, size, snapshot):
    head = MetadataHead(b"\0" * 16, min(snapshot.sequence + beyond, 2**64 - 1), size, snapshot)
    assert decode_head(encode_head(head), "/head") == head


@given(st.data())
def test_damage_is_noticed(data):
    with pytest.raises(MalformedError):
        decode_head(data.draw(damaged(encode_head(HEAD))), "/head")


def test_what_contradicts_itself_is_refused():
    beyond = HEAD._replace(sequence=4)
    with pytest.raises(MalformedError, match="snapshot 5 is beyond its end 4"):
        decode_head(encode_head(beyond), "/head")
    many = HEAD._replace(snapshot=SnapshotReference(5, 77, 1 << 17, 1000))
    with pytest.raises(MalformedError, match="131072 chunks"):
        decode_head(encode_head(many), "/head")
    with pytest.raises(MalformedError, match="cut short"):
        decode_head(seal(2, b"c" * 16), "/head")


def test_a_batch_moves_the_head():
    assert HEAD.after(10, 7) == HEAD._replace(sequence=10, changes_size=107)
