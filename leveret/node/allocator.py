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
FREED_BYTES_MIN = 16 * 1024 * 1024  # less is not worth looking for
RESTING_BYTES_MAX = 1024 * 1024  # freed between two looks: it is more while there is traffic


def find_trim() -> Callable[[], object] | None:
    """Return a function that releases free pages, to run in a thread for some ms, or None."""
    try:
        trim = ctypes.CDLL(None).malloc_trim
    except (AttributeError, OSError):  # another library than glibc
        return None
    return lambda: trim(0)


class Ebb:
    """Detects that much memory was freed, and that no more is being freed.

    While there is traffic pages stay: fresh ones cost more than those that the process has.
    """

    def __init__(self) -> None:
        self._returned = 0  # bytes freed when pages were released last
        self._last = 0

    def has_come(self, freed_bytes: int) -> bool:
        """Return whether to release pages, by the bytes freed so far. Call each LOOK_SECONDS."""
        rests = freed_bytes - self._last <= RESTING_BYTES_MAX
        self._last = freed_bytes
        if not rests or freed_bytes - self._returned < FREED_BYTES_MIN:
            return False
        self._returned = freed_bytes
        return True
