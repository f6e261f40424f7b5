"""Changes of a partition layout, without I/O."""

from __future__ import annotations

from typing import TYPE_CHECKING

from leveret.ports.definitions import PartitionLayout

if TYPE_CHECKING:
    from collections.abc import Collection

__all__ = ["resized", "without"]


def resized(layout: PartitionLayout, count: int) -> PartitionLayout:
    """Return a layout with `count` active partitions, which is at least one.

    More of them: those that are being retired first, since they exist, then new ones. Fewer: those
    with the highest numbers are retired.
    """
    active, retired, made = list(layout.active), list(layout.retired), layout.made
    if count <= len(active):
        return PartitionLayout(tuple(active[:count]), tuple(sorted(retired + active[count:])), made)
    back = retired[: count - len(active)]
    active = sorted(active + back)
    new = range(made, made + count - len(active))
    return PartitionLayout((*active, *new), tuple(retired[len(back) :]), made + len(new))


def without(layout: PartitionLayout, numbers: Collection[int]) -> PartitionLayout:
    """Return a layout without some of its retired partitions."""
    retired = tuple(number for number in layout.retired if number not in numbers)
    return PartitionLayout(layout.active, retired, layout.made)
