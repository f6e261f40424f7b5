"""Search among delayed records, in due order, in pages and with a budget.

A hundred thousand records may wait, and the search may be for a rare one. So a page is read in each
turn of the loop, and a search that has used its budget says where to continue. Records added
meanwhile are not found; those that become due are skipped.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from types import coroutine
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Generator, Mapping, Sequence

    from leveret.features.delay.store import DelayedMessageStore, PendingMessage

__all__ = ["SCANNED_MAX", "Cursor", "DelayedMessageFilter", "DelayedMessageSearch"]

# Records per turn of the loop: a third of a millisecond with headers compared (decision 0035).
# Smaller pages would read the same batches more often.
PAGE_RECORDS = 50
SCANNED_MAX = 10_000  # records per search that a client waits for: a fraction of a second
OFFSET_LAST = (1 << 63) - 1

Cursor = tuple[int, int]  # due time and offset of the last record seen


@dataclass(frozen=True, slots=True)
class DelayedMessageFilter:
    """Filter for delayed messages: all stated fields must match.

    Header values may be given as text, whatever their wire type.
    """

    exchange: str | None = None
    routing_key: str | None = None
    headers: Mapping[str, object] = field(default_factory=dict)
    due_from_ms: int | None = None
    due_before_ms: int | None = None
    message_id: str | None = None

    @property
    def is_everything(self) -> bool:
        """Whether no field is stated."""
        return self == DelayedMessageFilter()

    def has(self, message: PendingMessage) -> bool:
        """Whether a message matches."""
        first, behind = self.due_from_ms, self.due_before_ms
        if first is not None and message.due_ms < first:
            return False
        return (behind is None or message.due_ms < behind) and self.includes(message)

    def includes(self, message: PendingMessage) -> bool:
        """Whether a message matches, apart from its due time."""
        if self.exchange is not None and message.exchange != self.exchange.encode():
            return False
        if self.routing_key is not None and message.routing_key != self.routing_key.encode():
            return False
        if self.message_id is None and not self.headers:
            return True
        stored = message.stored
        if self.message_id not in {None, stored.property("message_id")}:
            return False
        own = stored.open_headers
        return all(
            name in own and (own[name] == wanted or _text(own[name]) == wanted)
            for name, wanted in self.headers.items()
        )


class DelayedMessageSearch:
    """One pass through a store, for messages selected after `after`.

    `is_pending(offset)` says whether a record still waits. Without `scanned_max` it goes to the
    end, for operations that change what is found.
    """

    def __init__(
        self,
        store: DelayedMessageStore,
        selection: DelayedMessageFilter,
        after: Cursor | None,
        is_pending: Callable[[int], bool],
        scanned_max: int | None = None,
    ) -> None:
        self._room = store
        self._selection = selection
        self._is_pending = is_pending
        self._scanned_max = scanned_max
        self.scanned = 0
        if after is None and selection.due_from_ms:
            after = (selection.due_from_ms - 1, OFFSET_LAST)
        self.after = after  # last record scanned
        self.is_over = False  # whether the end was reached

    async def found(self) -> AsyncIterator[Sequence[PendingMessage]]:
        """Yield the selected messages, a page at a time. Raises StorageError."""
        store, stop = self._room, self._room.log.end
        while not store.deleted:
            left = PAGE_RECORDS if self._scanned_max is None else self._scanned_max - self.scanned
            if left <= 0:
                return
            count = min(left, PAGE_RECORDS)
            places = store.scan(self.after, self._selection.due_before_ms, count)
            if not places:
                break
            self.after = places[-1]
            self.scanned += len(places)
            read = await store.read([offset for _, offset in places if offset < stop])
            read.sort()
            yield [
                message
                for message in read
                if self._is_pending(message.offset) and self._selection.includes(message)
            ]
            await _pass()
        self.is_over = True


@coroutine
def _pass() -> Generator[None, None, None]:
    """Yield to the event loop once."""
    yield


def _text(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, bytes | bytearray):
        return value.decode(errors="replace")
    return str(value)
