"""Objects of the broker's that nobody refers to any more but they each other."""

from __future__ import annotations

import gc
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator


@contextmanager
def left_in_cycles() -> Iterator[list[object]]:
    """Collect what became garbage within, and only the collector of cycles would have found."""
    found: list[object] = []
    gc.collect()
    gc.disable()
    try:
        yield found
        gc.set_debug(gc.DEBUG_SAVEALL)
        gc.collect()
        found += [each for each in gc.garbage if type(each).__module__.startswith("leveret.")]
    finally:
        gc.set_debug(0)
        gc.garbage.clear()
        gc.enable()
