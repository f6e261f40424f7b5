"""Memory of large messages that are received, used again once nobody has a view of it."""

from __future__ import annotations

from collections import deque
from typing import Final

__all__ = ["MessageBuffers"]

# Sizes are rounded up to this, so that messages of about the same size share buffers.
STEP_BYTES: Final = 64 * 1024
# Buffers that are looked at for one that is free: they are in the order of their last use, so most
# often the first one is.
LOOKED_AT_MAX: Final = 4


class MessageBuffers:
    """Buffers for large messages of all links of a node.

    Fresh memory costs more than receiving into it: the system fills each page with zeros, and
    Python does so once more. Up to `kept_bytes_max` are kept; they are not used while any view of
    them exists, as Python tells.
    """

    def __init__(self, kept_bytes_max: int) -> None:
        self.kept_bytes = 0
        self._kept_bytes_max = kept_bytes_max
        self._kept: deque[bytearray] = deque()

    def take(self, size: int) -> memoryview:
        """Return `size` bytes of any content, the caller's until no view of them is left."""
        for _ in range(min(LOOKED_AT_MAX, len(self._kept))):
            buffer = self._kept.popleft()
            self._kept.append(buffer)
            if size <= len(buffer) <= 2 * size + STEP_BYTES and _is_free(buffer):
                return memoryview(buffer)[:size]
        buffer = bytearray(-(-size // STEP_BYTES) * STEP_BYTES)
        self._keep(buffer)
        return memoryview(buffer)[:size]

    def _keep(self, buffer: bytearray) -> None:
        """Keep a buffer, and forget those that were used longest ago."""
        if len(buffer) > self._kept_bytes_max:
            return
        self._kept.append(buffer)
        self.kept_bytes += len(buffer)
        while self.kept_bytes > self._kept_bytes_max:
            self.kept_bytes -= len(self._kept.popleft())


def _is_free(buffer: bytearray) -> bool:
    """Return whether no view of a buffer exists: Python resizes none that has one."""
    try:
        last = buffer.pop()
    except BufferError:
        return False
    buffer.append(last)  # into memory that it still has
    return True
