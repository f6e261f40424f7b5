"""Places in lists of messages, in query strings and answers: `17`, or `2:17` with a partition.

A list over all partitions of a queue has its places with the partition, and `2:` is where partition
2 begins (see leveret.core.admin.partition_lists).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from leveret.mgmt_ui.api.bodies import path_number

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["place_of", "place_text"]


def place_of(text: str | None, read: Callable[[str], Any]) -> Any:
    """Parse a place; `read` parses one in a partition. Raises ApiError 400."""
    if text is None:
        return None
    number, colon, after = text.partition(":")
    if not colon:
        return read(text)
    return {"partition": path_number(number, "after"), "after": read(after) if after else None}


def place_text(place: Any, write: Callable[[Any], Any] = lambda after: after) -> Any:
    """Return a place for an answer; `write` formats one in a partition, None for none."""
    if not isinstance(place, dict):
        return write(place)
    after = write(place["after"])
    return f"{place['partition']}:{'' if after is None else after}"
