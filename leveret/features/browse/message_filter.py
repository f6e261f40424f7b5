"""Filter for messages of a queue: all stated fields must match.

An immutable value that management makes from an operator's request, for `browsing`.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

from leveret.features.dead_letter.redrive_rules import shown

if TYPE_CHECKING:
    from leveret.core.routing.message import StoredMessage
    from leveret.features.filters.filters import RecordFilter
    from leveret.ports.ranges import RangeSet

__all__ = ["MessageFilter", "MessageState"]


class MessageState(StrEnum):
    """Present state of a message."""

    READY = "ready"  # waits for a consumer
    UNACKED = "unacked"  # leased to a consumer, or to a move in progress
    DELAYED = "delayed"  # returned; waits for its time, or for another message of its key
    SETTLED = "settled"  # kept for groups and range reads; found only if asked for


@dataclass(frozen=True, slots=True)
class MessageFilter:
    """Filter criteria; None or empty fields match all.

    Times are ms since 1970 at which messages were stored in the queue, `until_ms` excluded. Headers
    are compared as people type them.
    """

    offsets: RangeSet | None = None
    message_ids: frozenset[str] = frozenset()
    states: frozenset[MessageState] = frozenset()
    exchange: bytes | None = None
    routing_key: bytes | None = None
    headers: tuple[tuple[str, str], ...] = ()
    text: bytes | None = None  # somewhere in the body
    since_ms: int | None = None
    until_ms: int | None = None
    with_settled: bool = False  # whatever the state: those that are settled and kept, too
    filter: RecordFilter | None = None  # by tags, and by SQL

    @property
    def states_something(self) -> bool:
        """Whether any field is stated."""
        return self != MessageFilter()

    def has(self, message: StoredMessage, time_ms: int, state: MessageState) -> bool:
        """Whether a message matches, apart from its offset; cheap checks come first."""
        return (
            (not self.states or state in self.states)
            and (self.since_ms is None or time_ms >= self.since_ms)
            and (self.until_ms is None or time_ms < self.until_ms)
            and (self.exchange is None or message.exchange == self.exchange)
            and (self.routing_key is None or message.routing_key == self.routing_key)
            and (self.filter is None or self.filter.matches(message.header))
            and (not self.message_ids or message.property("message_id") in self.message_ids)
            and (not self.headers or self._has_headers(message))
            and (self.text is None or self.text in message.body)
        )

    def _has_headers(self, message: StoredMessage) -> bool:
        headers = message.open_headers
        return all(name in headers and shown(headers[name]) == want for name, want in self.headers)
