"""Keys in order, in chunks, so that neither adding nor listing costs what all of them do."""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

__all__ = ["SortedKeys"]

CHUNK_KEYS = 512  # moving as many pointers costs less than finding the place


class SortedKeys:
    """Set of strings in order. `add` expects a new one, `remove` one that is there."""

    def __init__(self, keys: Iterable[str] = ()) -> None:
        ordered = sorted(keys)
        self._chunks = [
            ordered[first : first + CHUNK_KEYS] for first in range(0, len(ordered), CHUNK_KEYS)
        ]
        self._firsts = [chunk[0] for chunk in self._chunks]

    def add(self, key: str) -> None:
        """Add a key that is not there yet."""
        if not self._chunks:
            self._chunks.append([key])
            self._firsts.append(key)
            return
        index = max(0, bisect_right(self._firsts, key) - 1)
        chunk = self._chunks[index]
        insort(chunk, key)
        self._firsts[index] = chunk[0]
        if len(chunk) > 2 * CHUNK_KEYS:
            self._chunks.insert(index + 1, chunk[CHUNK_KEYS:])
            self._firsts.insert(index + 1, chunk[CHUNK_KEYS])
            del chunk[CHUNK_KEYS:]

    def remove(self, key: str) -> None:
        """Remove a key that is there."""
        index = bisect_right(self._firsts, key) - 1
        chunk = self._chunks[index]
        del chunk[bisect_left(chunk, key)]
        if chunk:
            self._firsts[index] = chunk[0]
        else:
            del self._chunks[index], self._firsts[index]

    def beginning_with(self, prefix: str) -> Iterator[str]:
        """Return the keys that begin with `prefix`, in order."""
        index = max(0, bisect_right(self._firsts, prefix) - 1)
        for chunk in self._chunks[index:]:
            for key in chunk[bisect_left(chunk, prefix) :]:
                if not key.startswith(prefix):
                    return
                yield key
