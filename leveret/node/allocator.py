"""Gives memory back to the system that the C library keeps when much of it was freed.

Batches are of any size and die in any order. What is freed below something that lives on stays
with the process, unless the library is told to return whole pages wherever they are.
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
    """What returns free pages, a few milliseconds' work in a thread; None where nothing does."""
    try:
        trim = ctypes.CDLL(None).malloc_trim
    except (AttributeError, OSError):  # another library than glibc
        return None
    return lambda: trim(0)


class Ebb:
    """Notices that much was freed, and that nothing more is.

    While there is traffic pages stay: fresh ones cost more than those that the process has.
    """

    def __init__(self) -> None:
        self._returned = 0  # what was freed when pages were returned last
        self._last = 0

    def has_come(self, freed_bytes: int) -> bool:
        """Whether to return pages, if so much was freed since the start. Ask each LOOK_SECONDS."""
        rests = freed_bytes - self._last <= RESTING_BYTES_MAX
        self._last = freed_bytes
        if not rests or freed_bytes - self._returned < FREED_BYTES_MIN:
            return False
        self._returned = freed_bytes
        return True
