"""Batches of changes: what is written is read, and nothing else is taken for one."""

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leveret.cluster.metadata import encoding
from leveret.cluster.metadata.changes import (
    BATCH_BYTES_MAX,
    ChangeBatch,
    PendingWrite,
    decode_batch,
    encode_batch,
)
from leveret.cluster.metadata.encoding import MalformedError, seal
from leveret.errors import NewerFormatError
from leveret.ports.coordination import (
    KEY_BYTES_MAX,
    VALUE_BYTES_MAX,
    WRITE_BYTES_MAX,
    KeyChange,
    KeyCheck,
    WriteTooLargeError,
)
from tests.cluster.metadata.samples import CHANGES, damaged

BATCH = ChangeBatch(1, 2, 3, (KeyChange("a", b"1"), KeyChange("ü", None), KeyChange("b", b"")))
HEADER = struct.pack("<QQQI", 1, 2, 3, 1)


@given(
    st.builds(
        ChangeBatch,
        st.integers(0, 2**64 - 1),
        st.integers(0, 2**64 - 1),
        st.integers(1, 2**64 - 1),
        CHANGES.map(tuple),
    )
)
def test_a_batch_is_read_as_it_was_written(batch):
    assert decode_batch(encode_batch(batch), batch.sequence, "/x") == batch


@given(st.data())
def test_damage_is_noticed(data):
    with pytest.raises(MalformedError):
        decode_batch(data.draw(damaged(encode_batch(BATCH))), 3, "/x")


@given(st.binary(max_size=60))
def test_a_body_of_any_bytes_is_refused_or_a_batch(body):
    """Checksums keep out damage, not malice."""
    try:
        batch = decode_batch(seal(1, body), 3, "/x")
    except MalformedError:
        return
    assert decode_batch(encode_batch(batch), 3, "/x") == batch


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (struct.pack("<QQQI", 1, 2, 4, 0), "number 4"),
        (HEADER, "cut short"),
        (HEADER + struct.pack("<HI", 0, 0), "key in it has 0 bytes"),
        (HEADER + struct.pack("<HI", KEY_BYTES_MAX + 1, 0) + bytes(3000), "key in it has 2049"),
        (HEADER + struct.pack("<HI", 1, VALUE_BYTES_MAX + 1) + b"a", "value in it has 131073"),
        (HEADER + struct.pack("<HI", 1, 0) + b"\xff", "UTF-8"),
        (HEADER + struct.pack("<HI", 1, 0) + b"ab", "1 bytes follow"),
        (
            struct.pack("<QQQI", 1, 2, 3, 2) + 2 * (struct.pack("<HI", 1, 0) + b"a"),
            "the key a twice",
        ),
        (bytes(BATCH_BYTES_MAX), "more than"),
    ],
)
def test_what_no_node_writes_is_refused_with_the_reason(body, reason):
    with pytest.raises(MalformedError, match=reason):
        decode_batch(seal(1, body), 3, "/x")


def test_other_kinds_and_newer_versions_are_told_apart(monkeypatch):
    with pytest.raises(MalformedError, match="kind 2"):
        decode_batch(seal(2, b""), 3, "/x")
    monkeypatch.setattr(encoding, "VERSION", 2)
    newer = encode_batch(BATCH)
    monkeypatch.undo()
    with pytest.raises(NewerFormatError, match=r"/x \(version 2\) was written by a newer release"):
        decode_batch(newer, 3, "/x")


def test_the_layout_stays_as_it_is():
    """Other releases read it."""
    assert encode_batch(BATCH).hex() == (
        "4c5601010bb39157010000000000000002000000000000000300000000000000"
        "0300000001000100000061310200ffffffffc3bc01000000000062"
    )


def test_the_largest_writes_fit_into_a_batch():
    """A batch of as many bytes as writes may have is below the limit at which it is read."""
    value = bytes(VALUE_BYTES_MAX)
    rest = WRITE_BYTES_MAX - 2 * len(value) - 7
    assert rest < 0
    write = PendingWrite.of([KeyChange("a", value), KeyChange("b", value[:-14])])
    assert write.size == WRITE_BYTES_MAX
    data = encode_batch(ChangeBatch(1, 1, 1, write.changes))
    assert decode_batch(data, 1, "/x").changes == write.changes
    with pytest.raises(WriteTooLargeError):
        PendingWrite.of([KeyChange("a", value), KeyChange("b", value[:-13])])


def test_changes_and_checks_are_told_apart():
    change, check = KeyChange("a", b"1", 4), KeyCheck("b", 0)
    write = PendingWrite.of([check, change])
    assert (write.changes, write.checks, write.size) == ((change,), (check,), 8)
