"""Checks of raw batches, which go from one node's files into another's."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leveret.ports.records import Batch, BatchBuilder
from leveret.storage.batch_walk import BatchWalk, whole_batches
from leveret.storage.encryption import DataKey, Sealer
from leveret.storage.index import INDEX_INTERVAL_BYTES

LEADER_EPOCH_AT = 28


def a_batch(base, count=1, epoch=0, body=b"body"):
    builder = BatchBuilder()
    for _ in range(count):
        builder.add(1, 1_700_000_000_000, b"x", b"key", b"header", body)
    return in_epoch(builder.seal(base), epoch)


def in_epoch(batch, epoch):
    raw = bytearray(batch)
    raw[LEADER_EPOCH_AT : LEADER_EPOCH_AT + 4] = epoch.to_bytes(4, "little")
    made = Batch.parse(raw)
    made.set_checksum()
    return made


def joined(*batches):
    return b"".join(bytes(batch) for batch in batches)


def control(base, epoch=0, payload=b"\x02"):
    batch = Batch.control(base, payload, 0, epoch)
    batch.set_checksum()
    return batch


def test_a_walk_says_where_the_batches_end():
    sealed = Sealer(DataKey(7, bytes(32))).seal(a_batch(12, 2, epoch=3))
    first = joined(control(10, 2), a_batch(10, 2, epoch=3))
    walk = BatchWalk(first + bytes(sealed), 10, 1)
    assert (walk.size, walk.last) == (len(first) + sealed.size, len(first))
    assert (walk.offset, walk.epoch, walk.checksum) == (14, 3, sealed.checksum)
    assert walk.reason is None
    assert walk.entries == [(10, control(10, 2).size)]


def test_nothing_is_a_walk_too():
    walk = BatchWalk(b"", 7, 2)
    assert (walk.size, walk.offset, walk.epoch, walk.checksum) == (0, 7, 2, 0)
    assert walk.reason is None


def with_records_in_control() -> bytes:
    raw = bytearray(control(5))
    raw[24] = 1
    made = Batch.parse(raw)
    made.set_checksum()
    return bytes(made)


@pytest.mark.parametrize(
    ("behind", "reason"),
    [
        (bytes(a_batch(6)), "offset 6 stands where 5 follows"),
        (bytes(a_batch(4)), "offset 4 stands where 5 follows"),
        (bytes(control(6)), "offset 6 stands where 5 follows"),
        (bytes(a_batch(5, epoch=1)), "epoch 1 stands behind 2"),
        (bytes(a_batch(5, epoch=2))[:-1] + b"?", "the checksum is wrong"),
        (b"LVB2" + bytes(a_batch(5))[4:], "no batch begins there"),
        (bytes(100), "no batch begins there"),
        (b"LVB1" + (63).to_bytes(4, "little") + bytes(92), "no batch begins there"),
        (with_records_in_control(), "a control batch has records"),
    ],
)
def test_what_does_not_follow_is_refused(behind, reason):
    sound = bytes(a_batch(4, epoch=2))
    walk = BatchWalk(sound + behind, 4, 0)
    assert (walk.size, walk.reason, walk.wanted) == (len(sound), reason, 0)


def test_a_compacted_batch_may_leave_offsets_out():
    raw = bytearray(a_batch(9))
    raw[20] |= 16
    made = Batch.parse(raw)
    made.set_checksum()
    assert BatchWalk(bytes(made), 5, 0).offset == 10
    assert BatchWalk(bytes(made), 10, 0).reason == "offset 9 stands where 10 follows"


def test_a_walk_that_ends_within_a_batch_says_how_long_that_is():
    raw = bytes(a_batch(0, body=b"b" * 500))
    for size in range(1, len(raw)):
        walk = BatchWalk(raw[:size], 0, 0)
        assert walk.size == 0
        assert walk.reason == "they end within a batch"
        assert walk.wanted == (len(raw) if size >= 8 else 64)
        assert whole_batches(raw + raw[:size], 0) == (len(raw), 1)


def test_entries_for_the_index_are_as_far_apart_as_its_own():
    batches = [a_batch(offset, body=b"b" * 30_000) for offset in range(8)]
    size = batches[0].size
    walk = BatchWalk(joined(*batches), 0, 0, due=1)
    step = -(-INDEX_INTERVAL_BYTES // size)
    assert walk.entries == [(at, at * size) for at in range(1, 8, step)]


@given(st.binary(max_size=200) | st.binary(max_size=100).map(b"LVB1".__add__))
def test_any_bytes_may_stand_behind_sound_ones(behind):
    sound = joined(control(0), a_batch(0, 3))
    walk = BatchWalk(sound + behind, 0, 0)
    assert (walk.size, walk.offset) == (len(sound), 3)
    assert (walk.reason is None) == (not behind)
    assert len(sound) <= whole_batches(sound + behind, 0)[0] <= len(sound + behind)


@given(st.data())
def test_a_flipped_bit_is_noticed(data):
    sound = bytearray(joined(control(0), a_batch(0, 3, epoch=1), a_batch(3, epoch=1)))
    bit = data.draw(st.integers(0, len(sound) * 8 - 1))
    sound[bit // 8] ^= 1 << bit % 8
    walk = BatchWalk(bytes(sound), 0, 0)
    assert walk.size <= bit // 8
    assert walk.reason is not None
