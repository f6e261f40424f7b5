"""Records about parts and writers."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leveret.errors import StorageError
from leveret.features.staged_batches.records import (
    CommitNote,
    StagedPart,
    WriterId,
    pack_note,
    pack_part,
    unpack,
)

NAMES = st.text(max_size=60).filter(lambda name: len(name.encode()) <= 255)
NUMBERS = st.integers(0, (1 << 64) - 1)
WRITERS = st.builds(WriterId, NAMES, NAMES)
PARTS = st.builds(
    StagedPart,
    WRITERS,
    NUMBERS,
    NAMES,
    NUMBERS,
    NUMBERS,
    st.lists(st.tuples(NUMBERS, NUMBERS), max_size=5),
    st.lists(NAMES, max_size=5),
    st.just(7),
    st.just(3),
    st.none() | st.integers(0, (1 << 32) - 1),
)


@given(PARTS)
def test_a_part_is_read_as_it_was_written(part):
    assert unpack(part.writer.name.encode(), pack_part(part), 3, 7) == part


@given(st.builds(CommitNote, WRITERS, NUMBERS, NUMBERS, st.just(3)))
def test_a_note_is_read_as_it_was_written(note):
    assert unpack(note.writer.name.encode(), pack_note(note), 3, 7) == note


@given(PARTS, st.data())
def test_what_is_cut_off_is_told(part, data):
    body = pack_part(part)
    # Without its checksum it is as an earlier release has written it.
    whole = len(pack_part(replace(part, checksum=None)))
    cut = body[: data.draw(st.integers(0, len(body) - 1).filter(lambda size: size != whole))]
    with pytest.raises(StorageError):
        unpack(b"w", cut, 0, 0)


def test_a_later_kind_is_told():
    with pytest.raises(StorageError, match="unknown kind"):
        unpack(b"w", b"\x03", 0, 0)


def test_bytes_as_they_are_stored():
    part = StagedPart(WriterId("w", "u"), 2, "p", 3, 4, [(5, 6)], ["x"])
    before = bytes.fromhex(
        "01 0200000000000000 0300000000000000 0400000000000000 0175 0170"
        "01000000 0500000000000000 0600000000000000 01000000 0178"
    )
    assert pack_part(part) == before
    assert pack_part(replace(part, checksum=0x89ABCDEF)) == before + bytes.fromhex("efcdab89")
    note = CommitNote(WriterId("w", "u"), 2, 3)
    assert pack_note(note) == bytes.fromhex("02 0200000000000000 0300000000000000 0175")
