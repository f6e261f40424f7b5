"""Returns freed memory that the C library keeps to the system.

Batches have any size and are freed in any order. Free memory below a live block stays with the
process, unless the library is told to return whole pages wherever they are.
"""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["LOOK_SECONDS", "Ebb", "find_trim"]

LOOK_SECONDS = 2.0


def find_trim() -> Callable[[], object] | None:
    """Return a function that releases free pages, to run in a thread for some ms, or None."""
    try:
        trim = ctypes.CDLL(None).malloc_trim
    except (AttributeError, OSError):  # another library than glibc
        return None
    return lambda: trim(0)


class Ebb:
    """Detects that much was freed, such as bytes of batches, and that no more is being freed.

    Less than `least` is not worth looking for. With more than `resting` between two looks there is
    traffic: pages stay then, since fresh ones cost more than those that the process has.
    """

    def __init__(self, least: int, resting: int) -> None:
        self._least = least
        self._resting = resting
        self._returned = 0  # freed when pages were released last
        self._last = 0

    def has_come(self, freed: int) -> bool:
        """Return whether to release pages, by what was freed so far. Call each LOOK_SECONDS."""
        rests = freed - self._last <= self._resting
        self._last = freed
        if not rests or freed - self._returned < self._least:
            return False
        self._returned = freed
        return True
