"""Lists of what lies in a queue: in the partition that was stated, or in all of them.

All are listed one after the other, by number. As each counts its own offsets, a place in such a
list is {"partition": 2, "after": 17}; in the list of one partition it is the 17 alone. Places stay
right while partitions come and go: the number of a new one is larger than all before.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from leveret.core.admin.node import partition_of
from leveret.core.admin.shown import integer
from leveret.core.definitions.administration import AdministrationError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from leveret.core.queues.declared_queue import DeclaredQueue
    from leveret.core.queues.open_queue import OpenQueue

__all__ = ["ListedPartitions", "list_partitions"]


@dataclass(frozen=True, slots=True)
class ListedPartitions:
    """Partitions that are left to be listed, in order; iterated with the place in each."""

    parts: Sequence[OpenQueue]
    after: Any  # place in the first of them
    are_all: bool  # no partition was stated

    def __iter__(self) -> Iterator[tuple[OpenQueue, Any]]:
        after = self.after
        for part in self.parts:
            yield part, after
            after = None

    def place(self, number: int, after: Any) -> Any:
        """Return the place in the list behind a place in a partition; None: at its beginning."""
        return {"partition": number, "after": after} if self.are_all else after

    def behind(self, part: OpenQueue) -> Any:
        """Return the place in the list behind a partition, or None if it is the last one."""
        following = self.parts[self.parts.index(part) + 1 :]
        return self.place(following[0].number, None) if following else None


def list_partitions(
    queue: DeclaredQueue, number: object, after: Any, *, backwards: bool = False
) -> ListedPartitions:
    """Return the partitions that a request lists, behind the place `after` of the answer before.

    Raises AdministrationError.
    """
    if number is not None or queue.partitions[0].part_of is None:
        return ListedPartitions([partition_of(queue, number)], after, are_all=False)
    parts = sorted(queue.partitions, key=lambda part: part.number, reverse=backwards)
    if after is None:
        return ListedPartitions(parts, None, are_all=True)
    if not isinstance(after, dict) or after.keys() != {"partition", "after"}:
        text = "bad parameter 'after': it is what an answer before has said"
        raise AdministrationError("invalid", text)
    first = integer("after", after["partition"])
    left = [part for part in parts if (part.number <= first if backwards else part.number >= first)]
    is_there = bool(left) and left[0].number == first
    return ListedPartitions(left, after["after"] if is_there else None, are_all=True)
