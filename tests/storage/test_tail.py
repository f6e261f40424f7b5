"""The tail cache, where messages are settled in any order."""

from __future__ import annotations

import pytest

from leveret.ports.ranges import RangeSet
from leveret.ports.records import Batch, BatchBuilder
from leveret.storage.tail import GAPS_MAX, SPILLED_TOGETHER_MAX, LogTail, TailCache


def one_by_one(cache: TailCache, tail: LogTail, count: int) -> None:
    builder = BatchBuilder()
    for offset in range(count):
        builder.add(0, 1, b"", b"k", b"h" * 14, b"")
        cache.add(tail, builder.seal(offset))


@pytest.mark.parametrize("left", [1, 5, GAPS_MAX])
def test_the_oldest_may_be_the_last_to_leave(left):
    """The lists then move up by all that left before it, at once."""
    count = GAPS_MAX + 44 + left
    cache, tail, settled = TailCache(1 << 20), LogTail(), RangeSet()
    one_by_one(cache, tail, count)
    for offset in [*range(1, count - left), 0]:
        settled.add(offset, offset + 1)
        cache.settle(tail, offset, offset + 1, settled)
    assert [bool(tail.read(at, count, 1)) for at in range(count - left - 1, count)] == [
        False,
        *[True] * left,
    ]
    settled.add(count - left, count)
    filled = cache.bytes + cache.dropped_bytes
    cache.settle(tail, 0, count, settled)
    assert cache.bytes == 0
    assert cache.dropped_bytes == filled


def test_what_was_cut_off_is_not_read_among_what_comes_in_its_place():
    cache, tail = TailCache(1 << 20), LogTail()
    one_by_one(cache, tail, 3)
    kept = tail.read(0, 1, 1)
    cache.cut(tail, 1)
    assert tail.batches == kept
    fresh = BatchBuilder()
    fresh.add(0, 1, b"", b"k", b"h" * 14, b"another one")
    cache.add(tail, fresh.seal(1))
    assert tail.read(0, 2, 1 << 20) == tail.batches
    assert cache.bytes == sum(batch.size for batch in tail.batches)


def sized(size: int) -> Batch:
    builder = BatchBuilder()
    builder.add(0, 1, b"", b"k", b"h" * 14, b"b" * size)
    return builder.seal(0)


def test_a_large_batch_has_few_small_ones_written_down_at_once():
    """Each of them may make a file, while everybody else waits."""
    bytes_max, spilled = 1 << 20, []
    cache = TailCache(bytes_max)
    small = 0
    while cache.bytes + 1000 < bytes_max:
        cache.add(LogTail(spilled.append), sized(100))
        small += 1
    before = 0
    while len(spilled) < small:
        cache.add(LogTail(spilled.append), sized(10_000))
        assert cache.bytes <= bytes_max * 9 // 8
        if before < 10 * SPILLED_TOGETHER_MAX:  # before that room is used up
            assert len(spilled) - before <= SPILLED_TOGETHER_MAX
        before = len(spilled)
    for _ in range(100):
        cache.add(LogTail(spilled.append), sized(100))
    assert cache.bytes <= bytes_max


def test_what_need_not_be_written_down_leaves_at_once():
    cache = TailCache(1 << 20)
    while cache.bytes + 1000 < 1 << 20:
        cache.add(LogTail(), sized(100))
    cache.add(LogTail(), sized(100_000))
    assert cache.bytes <= 1 << 20
