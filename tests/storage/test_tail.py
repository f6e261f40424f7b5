"""The tail cache, where messages are settled in any order."""

from __future__ import annotations

import pytest

from leveret.ports.ranges import RangeSet
from leveret.ports.records import BatchBuilder
from leveret.storage.tail import GAPS_MAX, LogTail, TailCache


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
    cache.settle(tail, 0, count, settled)
    assert cache.bytes == 0
