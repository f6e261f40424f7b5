"""Processing of many objects in slices, with a pass of the event loop in between.

A node may hold a hundred thousand queues while its one event loop serves clients. A message that
comes meanwhile needs the loop several times before it is on its way, and waits for a slice each
time: so slices are about as short as a message takes by itself. The size of a slice follows from
the duration of the last one.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
import json
import time
from operator import itemgetter
from typing import TYPE_CHECKING, Any, TypeVar

from leveret.core.chores import drain

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterable

__all__ = [
    "OwnRows",
    "in_chunks",
    "in_pieces",
    "in_yielding_chunks",
    "made",
    "picked",
    "sorted_by",
]

T = TypeVar("T")
U = TypeVar("U")

CHUNK_SECONDS = 0.00005  # of the event loop
FIRST_ITEMS = 10  # of the first slice, where items are looked at
ROWS_AT_ONCE = 1  # the same, where they are made into rows
ITEMS_MIN, ITEMS_MAX = 1, 2000
CHUNK_CHARACTERS = 65_536  # sent at a time: few writes, little memory
RUN_ITEMS = 500  # sorted at once, in a fraction of a millisecond


async def in_yielding_chunks(
    items: Iterable[T], first: int = FIRST_ITEMS
) -> AsyncIterator[list[T]]:
    """Yield the items in slices, with a pass of the event loop before each.

    A slice has as many as the consumer processes in `CHUNK_SECONDS`, by the time of the last one:
    comparing names takes a fraction of the time of making rows. `first` is the size of the first
    slice. An iterator that leaves many items out would do so within one slice: see `picked`.
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


async def picked(items: Iterable[T], is_wanted: Callable[[T], bool]) -> list[T]:
    """Return the items that satisfy `is_wanted`."""
    return [item async for part in in_yielding_chunks(items) for item in part if is_wanted(item)]


async def made(items: Iterable[T], row_of: Callable[[T], U]) -> list[U]:
    """Return what `row_of` makes of each item."""
    return [row_of(item) async for part in in_yielding_chunks(items, ROWS_AT_ONCE) for item in part]


async def sorted_by(
    items: Iterable[T], key: Callable[[T], Any], *, reverse: bool = False
) -> list[T]:
    """Return the items sorted by `key`, as by `sorted`: in short runs, which are merged then."""
    runs: list[list[tuple[Any, T]]] = [[]]
    async for part in in_yielding_chunks(items):
        if len(runs[-1]) >= RUN_ITEMS:
            runs.append([])
        runs[-1] += [(key(item), item) for item in part]
    by = itemgetter(0)
    async for some in in_yielding_chunks(runs, 1):
        for run in some:
            run.sort(key=by, reverse=reverse)
    # Runs are drained, as freeing all at once would take long.
    merging = heapq.merge(*map(drain, runs), key=by, reverse=reverse)
    runs.clear()
    return [item async for part in in_yielding_chunks(merging) for _, item in part]


class OwnRows(list[T]):
    """Rows made for one answer: they are dropped as they are encoded.

    Freeing a hundred thousand at once takes longer than a client should wait.
    """


async def in_pieces(value: Any) -> AsyncIterator[str]:
    """Yield a value as pieces of JSON, the lists in it some items at a time."""
    before = ""
    if isinstance(value, dict) and value:
        for name, held in value.items():
            # A name as it is written in an object: {"name": null}
            yield before + json.dumps({name: None})[bool(before) : -len("null}")]
            async for piece in in_pieces(held):
                yield piece
            before = ", "
        yield "}"
    elif isinstance(value, list) and value:
        items = drain(value)
        if isinstance(value, OwnRows):
            value.clear()
        async for part in in_yielding_chunks(items):
            yield (before or "[") + json.dumps(part)[1:-1]
            before = ", "
        yield "]"
    else:
        yield json.dumps(value)


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
