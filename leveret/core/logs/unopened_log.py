"""Log of a queue that is not opened, as far as others may look at it: nothing is in it."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from leveret.ports.ranges import RangeSet
from leveret.ports.returns import Returns

if TYPE_CHECKING:
    from leveret.ports import LogFile, TopicLog
    from leveret.ports.records import Batch

__all__ = ["UNOPENED_LOG"]


class UnopenedLog:
    """A SharedLog of all queues that are not opened; it is read only, and has no settlements."""

    __slots__ = ()

    first = end = committed = acknowledged = 0
    settled = undone = erased = removed = RangeSet()
    returns = Returns()
    retained_from = retention = kept_from = None
    unclean = is_refusing = False
    appended_bytes = held_bytes = redelivered_stop = 0

    def __repr__(self) -> str:
        return "UNOPENED_LOG"

    def list_files(self) -> list[LogFile]:
        """Return no file: those that there are hold nothing."""
        return []

    def read(self, _offset: int, _bytes_max: int) -> list[Batch]:
        """Return nothing."""
        return []

    def peek(self, _offset: int) -> Batch | None:
        """Return None."""
        return None

    async def fetch(self, _offset: int, _bytes_max: int) -> list[Batch]:
        """Return nothing."""
        return []

    async def offset_at(self, _time_ms: int) -> int:
        """Return its end."""
        return self.end

    async def settlements_safe(self) -> None:
        """Do not wait: there are none."""


UNOPENED_LOG = cast("TopicLog", UnopenedLog())
