"""Processing of many objects in slices, with a pass of the event loop in between.

A message that comes meanwhile needs the loop several times before it is on its way, and waits for a
slice each time: so slices are about as short as a message takes by itself. The size of a slice
follows from the duration of the last one.
"""

from __future__ import annotations

import asyncio
import itertools
import time
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterable

__all__ = ["ROWS_AT_ONCE", "in_chunks", "in_yielding_chunks"]

T = TypeVar("T")

CHUNK_SECONDS = 0.00005  # of the event loop
FIRST_ITEMS = 10  # of the first slice, where items are looked at
ROWS_AT_ONCE = 1  # the same, where they are made into rows
ITEMS_MIN, ITEMS_MAX = 1, 2000
CHUNK_CHARACTERS = 65_536  # sent at a time: few writes, little memory


async def in_yielding_chunks(
    items: Iterable[T], first: int = FIRST_ITEMS
) -> AsyncIterator[list[T]]:
    """Yield the items in slices, with a pass of the event loop before each.

    A slice has as many as the consumer processes in `CHUNK_SECONDS`, by the time of the last one:
    comparing names takes a fraction of the time of making rows. `first` is the size of the first
    slice.
    """
    iterator, size = iter(items), first
    await asyncio.sleep(0)
    began = time.perf_counter()
    while part := list(itertools.islice(iterator, size)):
        yield part
        size = chunk_size(len(part), time.perf_counter() - began)
        await asyncio.sleep(0)
        began = time.perf_counter()


def chunk_size(done: int, seconds: float) -> int:
    """Return the size of the next slice, from size and time of the last; at most twice as many."""
    fitting = int(done * CHUNK_SECONDS / seconds) if seconds > 0 else ITEMS_MAX
    return max(ITEMS_MIN, min(fitting, 2 * done, ITEMS_MAX))


async def in_chunks(texts: AsyncIterator[str], end: str = "") -> AsyncIterator[bytes]:
    """Yield texts as a few large chunks of UTF-8, then `end`.

    It yields to the event loop when many texts are made at once, as `in_yielding_chunks` does.
    """
    gathered: list[str] = []
    size = 0
    began = time.perf_counter()
    async for text in texts:
        if time.perf_counter() - began > CHUNK_SECONDS:
            await asyncio.sleep(0)
            began = time.perf_counter()
        gathered.append(text)
        size += len(text)
        if size >= CHUNK_CHARACTERS:
            yield "".join(gathered).encode()
            gathered, size = [], 0
    yield "".join([*gathered, end]).encode()
