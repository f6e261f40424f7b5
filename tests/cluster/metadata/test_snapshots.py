"""Snapshots: what is written is read, and nothing else is taken for one."""

import struct
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leveret.cluster.metadata import snapshots
from leveret.cluster.metadata.encoding import MalformedError, seal
from leveret.cluster.metadata.head import MetadataHead, SnapshotReference
from leveret.cluster.metadata.snapshots import (
    CHANGES_BYTES_MIN,
    CHANGES_MAX,
    CHUNK_BYTES_MAX,
    CONTENT_BYTES_MAX,
    SnapshotAssembly,
    encode_snapshot,
    is_snapshot_due,
)
from leveret.cluster.metadata.state import WRITERS_MAX, AppliedBatch, StateImage
from leveret.ports.coordination import KEY_BYTES_MAX, VALUE_BYTES_MAX, KeyEntry
from tests.cluster.metadata.samples import KEYS, VALUES, damaged

IMAGES = st.builds(
    StateImage,
    st.just(50),
    st.dictionaries(KEYS, st.builds(KeyEntry, st.integers(1, 50), VALUES), max_size=20),
    st.dictionaries(
        st.integers(0, 2**64 - 1),
        st.builds(AppliedBatch, st.integers(0, 2**64 - 1), st.integers(0, 50)),
        max_size=5,
    ),
)


def assemble(chunks, sequence=50, count=None):
    assembly = SnapshotAssembly(SnapshotReference(sequence, 1, count or len(chunks), 0))
    for index, chunk in enumerate(chunks):
        assembly.add(chunk, f"/{index}")
    return assembly.image()


@given(IMAGES, st.integers(120, 200))  # five writers at least
def test_an_image_is_read_as_it_was_written(image, content_bytes_max):
    original, snapshots.CONTENT_BYTES_MAX = snapshots.CONTENT_BYTES_MAX, content_bytes_max
    try:
        found = assemble(list(encode_snapshot(image)))
    finally:
        snapshots.CONTENT_BYTES_MAX = original
    assert found == image
    assert list(found.writers) == list(image.writers)


@given(st.data())
def test_damage_is_noticed(data):
    chunks = list(encode_snapshot(StateImage(50, {"a": KeyEntry(3, b"1")}, {})))
    index = data.draw(st.integers(0, 1))
    chunks[index] = data.draw(damaged(chunks[index]))
    with pytest.raises(MalformedError):
        assemble(chunks)


def test_chunks_have_their_place():
    chunks = list(encode_snapshot(StateImage(50, {"a": KeyEntry(3, b"1")}, {})))
    with pytest.raises(MalformedError, match="chunk 1 of snapshot 50"):
        assemble(chunks[::-1])
    with pytest.raises(MalformedError, match="chunk 0 of snapshot 50"):
        assemble(chunks, sequence=51)


def test_the_largest_entries_fit_into_chunks():
    value = zlib.compress(b"") + struct.pack("<100Q", *range(100))
    value = (value * (VALUE_BYTES_MAX // len(value) + 1))[:VALUE_BYTES_MAX]
    image = StateImage(50, {"k" * n: KeyEntry(1, value) for n in range(2040, 2048)}, {})
    chunks = list(encode_snapshot(image))
    assert max(map(len, chunks)) <= CHUNK_BYTES_MAX
    assert assemble(chunks) == image


def chunk(index, content, size=None, sequence=50):
    body = struct.pack("<QII", sequence, index, len(content) if size is None else size)
    return seal(3, body + zlib.compress(content))


EMPTY = chunk(0, b"")
ENTRY = struct.pack("<HIQ", 1, 1, 5) + b"a1"


@pytest.mark.parametrize(
    ("chunks", "reason"),
    [
        ([chunk(0, bytes(CONTENT_BYTES_MAX + 1))], "its content has 262145 bytes"),
        ([chunk(0, bytes(1000), size=10)], "another size"),  # it would inflate without an end
        ([chunk(0, b"", size=10)], "another size"),
        ([seal(3, struct.pack("<QII", 50, 0, 0) + b"xyz")], "inflated"),
        ([chunk(0, b"x")], "cut short"),
        ([chunk(0, struct.pack("<QQQ", 1, 1, 51))], "batch 51, later"),
        (
            [chunk(0, b"".join(struct.pack("<QQQ", n, 1, 1) for n in range(WRITERS_MAX + 1)))],
            "1025 writers",
        ),
        ([EMPTY, chunk(1, ENTRY + ENTRY)], "a is in the snapshot twice"),
        ([EMPTY, chunk(1, struct.pack("<HIQ", 1, 1, 51) + b"a1")], "version 51"),
        ([EMPTY, chunk(1, struct.pack("<HIQ", 1, 1, 0) + b"a1")], "version 0"),
        ([EMPTY, chunk(1, struct.pack("<HIQ", 0, 1, 1) + b"1")], "0 bytes of key"),
        ([EMPTY, chunk(1, struct.pack("<HIQ", KEY_BYTES_MAX + 1, 1, 1))], "2049 bytes of key"),
        ([EMPTY, chunk(1, struct.pack("<HIQ", 1, VALUE_BYTES_MAX + 1, 1))], "131073 of value"),
        ([EMPTY, chunk(1, ENTRY[:-1])], "cut short"),
        ([bytes(CHUNK_BYTES_MAX + 1)], "more than"),
    ],
)
def test_what_no_node_writes_is_refused_with_the_reason(chunks, reason):
    with pytest.raises(MalformedError, match=reason):
        assemble(chunks)


@given(st.binary(max_size=60))
def test_a_content_of_any_bytes_is_refused_or_entries(content):
    try:
        image = assemble([EMPTY, chunk(1, content)])
    except MalformedError:
        return
    assert assemble(list(encode_snapshot(image))) == image


def test_a_snapshot_is_due_after_many_changes_or_bytes():
    head = MetadataHead(b"c" * 16, 10_000, 0, SnapshotReference(10_000, 1, 1, 100))
    assert not is_snapshot_due(head)
    assert not is_snapshot_due(head.after(10_000 + CHANGES_MAX - 1, 100))
    assert is_snapshot_due(head.after(10_000 + CHANGES_MAX, 100))
    assert is_snapshot_due(head.after(10_001, CHANGES_BYTES_MIN))
    large = head._replace(snapshot=head.snapshot._replace(size=10 * CHANGES_BYTES_MIN))
    assert not is_snapshot_due(large.after(10_001, 4 * CHANGES_BYTES_MIN))
    assert is_snapshot_due(large.after(10_001, 5 * CHANGES_BYTES_MIN))
