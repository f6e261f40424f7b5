"""Arguments of consumers that are members of a group."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from leveret.core.settings.arguments import (
    CONSUMER_GROUP,
    GROUP_ASSIGN,
    GROUP_SESSION,
    SESSION_MS,
)
from leveret.core.settings.stream_offsets import STREAM_OFFSET, Place, parse_start
from leveret.errors import ChannelError

if TYPE_CHECKING:
    from leveret.core.settings.stream_offsets import Start
    from leveret.ports.definitions import Arguments

__all__ = [
    "CONSUMER_GROUP",
    "GROUP_ASSIGN",
    "GROUP_SESSION",
    "SESSION_MS",
    "check_keeps_messages",
    "group_of",
    "start_of",
]


def group_of(arguments: Arguments) -> str | None:
    """Return the name of the group that a consumer wants to be a member of, if any."""
    name: str | None = arguments.get(CONSUMER_GROUP)
    return name


def start_of(arguments: Arguments) -> Start:
    """Return where a group begins that the consumer creates: with the next message by default."""
    start = parse_start(arguments.get(STREAM_OFFSET, Place.NEXT.value))
    assert start is not None, "arguments were checked"
    return start


def check_keeps_messages(queue: Any, name: str) -> None:
    """Raise ChannelError 406 unless a queue keeps messages that others have settled."""
    if queue.settings.retention is None:
        raise ChannelError(
            406,
            f"{name} keeps no messages for consumer groups: declare it with x-retention, or as a "
            "stream",
        )
