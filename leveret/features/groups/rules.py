"""Arguments of consumers that are members of a group."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from leveret.core.settings.arguments import (
    CONSUMER_GROUP,
    GROUP_ASSIGN,
    GROUP_SESSION,
    SESSION_MS,
)
from leveret.core.settings.stream_offsets import STREAM_OFFSET, Place, parse_group_start

if TYPE_CHECKING:
    from leveret.core.settings.stream_offsets import Start
    from leveret.ports.definitions import Arguments

__all__ = [
    "CONSUMER_GROUP",
    "GROUP_ASSIGN",
    "GROUP_SESSION",
    "SESSION_MS",
    "GroupLimits",
    "group_of",
    "start_of",
]


@dataclass(frozen=True, slots=True)
class GroupLimits:
    """How many groups there may be; `partitions` counts those that each group reads."""

    groups_per_queue_max: int = 1000
    partitions_per_vhost_max: int = 50_000


def group_of(arguments: Arguments) -> str | None:
    """Return the name of the group that a consumer wants to be a member of, if any."""
    name: str | None = arguments.get(CONSUMER_GROUP)
    return name


def start_of(arguments: Arguments) -> Start:
    """Return where a group begins that the consumer creates: with the next message by default."""
    start = parse_group_start(arguments.get(STREAM_OFFSET, Place.NEXT.value))
    assert start is not None, "arguments were checked"
    return start
