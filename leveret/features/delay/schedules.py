"""Operations on delayed messages: list, cancel, reschedule, deliver now.

Used by management and by `leveret.features.delay.schedule_commands`; everything is per virtual
host. Messages are selected by id or by a `DelayedMessageFilter`. Long lists are processed in pages,
with a pass of the loop between them: messages added meanwhile are not included, those that become
due are skipped. Changes are published as events `schedule.cancelled` and `schedule.rescheduled`, on
behalf of the acting user (see leveret.core.events).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from leveret.core.json_fields import plain
from leveret.core.logs.log_writer import JointCommit
from leveret.core.queues.queue import Queue
from leveret.errors import StorageError
from leveret.features.celery.eta_hold import EtaHold
from leveret.features.delay.rules import SCHEDULE_OWNER
from leveret.features.delay.scheduled import (
    broker_id,
    broker_offset,
    full_key,
    repetition_of,
    rescheduled,
)
from leveret.features.delay.search import (
    SCANNED_MAX,
    Cursor,
    DelayedMessageFilter,
    DelayedMessageSearch,
)
from leveret.ports.after_all import AfterAll
from leveret.ports.records import RecordFlag

if TYPE_CHECKING:
    from collections.abc import Callable
    from collections.abc import Set as AbstractSet

    from leveret.core.dependencies import CoreServices
    from leveret.features.delay.delayed_messages import DelayedMessages
    from leveret.features.delay.store import PendingMessage

__all__ = ["Cursor", "DelayedMessageFilter", "SchedulePage", "Schedules", "row_of"]

Keeper: TypeAlias = "DelayedMessages | EtaHold"  # owner of messages in a delayed-message store


@dataclass(frozen=True, slots=True)
class SchedulePage:
    """Page of a list; `following` is the cursor of the next page, None at the end."""

    rows: list[dict[str, object]]
    following: Cursor | None


class Schedules:
    """Delayed messages of a node, for management."""

    def __init__(self, core: CoreServices, find: Callable[[str], DelayedMessages | None]) -> None:
        """Create it; `find(vhost)` returns the delayed messages of a virtual host."""
        self._find = find
        self._vhosts = core.vhosts
        self._emit = core.events.emit
        self.wall_ms = core.timers.wall_ms

    # -- queries

    def pending_count(self, vhost: str, queue: str | None = None) -> int:
        """Return the number of pending messages of a virtual host, or of one queue's tasks."""
        keeper = self._keeper(vhost, queue)
        return 0 if keeper is None or keeper.store is None else keeper.store.pending_count

    async def page(
        self,
        vhost: str,
        selection: DelayedMessageFilter,
        count_max: int,
        after: Cursor | None = None,
        *,
        queue: str | None = None,
    ) -> SchedulePage:
        """Return the next messages, at most `count_max`, in due order. Raises StorageError."""
        rows: list[dict[str, object]] = []
        last = after
        search = self._search(self._keeper(vhost, queue), selection, after, SCANNED_MAX)
        if search is None:
            return SchedulePage(rows, None)
        async for found in search.found():
            for message in found:
                if len(rows) == count_max:
                    return SchedulePage(rows, last)
                rows.append(row_of(message))
                last = (message.due_ms, message.offset)
        return SchedulePage(rows, None if search.is_over else search.after)

    async def find(
        self, vhost: str, id_: str, *, queue: str | None = None
    ) -> PendingMessage | None:
        """Return one message; None if none has the id. Raises StorageError."""
        return await self._by_id(self._keeper(vhost, queue), id_)

    # -- changes

    async def exchanges(
        self, vhost: str, chosen: str | DelayedMessageFilter, *, owner: str | None = None
    ) -> set[str]:
        """Return the exchanges of the selected messages, for permission checks. StorageError."""
        names: set[bytes] = set()

        def note(message: PendingMessage) -> bool:
            names.add(message.exchange)
            return True

        await self._each(self._keeper(vhost, None), chosen, note, owner)
        return {name.decode(errors="replace") for name in names}

    async def cancel(
        self,
        vhost: str,
        chosen: str | DelayedMessageFilter,
        *,
        queue: str | None = None,
        owner: str | None = None,
        exchanges: AbstractSet[str] | None = None,
    ) -> int:
        """Cancel the selected messages, durably. Returns their number. Raises StorageError.

        Of messages with the same id, that of the user `owner` is meant; of all selected ones, those
        for one of `exchanges`.
        """
        keeper = self._keeper(vhost, queue)

        def cancel(message: PendingMessage) -> bool:
            if keeper is None or not keeper.cancel(message):
                return False
            self._emit("schedule.cancelled", _told(vhost, message))
            return True

        count = await self._each(keeper, chosen, cancel, owner, exchanges)
        if keeper is not None and keeper.store is not None:  # an earlier one may have failed here
            await keeper.store.settlements_safe()
        return count

    async def reschedule(
        self,
        vhost: str,
        chosen: str | DelayedMessageFilter,
        due_ms: int,
        *,
        owner: str | None = None,
        exchanges: AbstractSet[str] | None = None,
    ) -> int:
        """Change the due time of messages, selected as in `cancel`, durably. Returns their number.

        Raises StorageError: those keep their time of which the change could not be stored.
        """
        messages, changes, written = self._find(vhost), JointCommit(), AfterAll(1)

        def reschedule(message: PendingMessage) -> bool:
            if messages is None or not messages.is_pending(message.offset):
                return False
            messages.replace(message, rescheduled(message, due_ms))
            changes.add((messages.store,))
            told = _told(vhost, message)
            told |= {"due_ms": due_ms, "due_ms_before": message.due_ms}
            self._emit("schedule.rescheduled", told)
            return True

        count = await self._each(messages, chosen, reschedule, owner, exchanges)
        changes.await_commit(written)
        if await written:
            raise StorageError(
                "the disk refused it, and what it refused has not changed: see the node's log"
            )
        return count

    async def _each(
        self,
        keeper: Keeper | None,
        chosen: str | DelayedMessageFilter,
        change: Callable[[PendingMessage], bool],
        owner: str | None = None,
        exchanges: AbstractSet[str] | None = None,
    ) -> int:
        names = None if exchanges is None else {name.encode() for name in exchanges}

        def change_meant(message: PendingMessage) -> bool:
            return (names is None or message.exchange in names) and change(message)

        if isinstance(chosen, str):
            message = await self._by_id(keeper, chosen, owner)
            return int(message is not None and change_meant(message))
        count = 0
        search = self._search(keeper, chosen, None, None)
        if search is not None:
            async for found in search.found():
                count += sum(map(change_meant, found))
        return count

    # -- lookups

    def _keeper(self, vhost: str, queue: str | None) -> Keeper | None:
        """Return the owner of a virtual host's messages, or of a queue's tasks."""
        return self._find(vhost) if queue is None else self._eta_hold(vhost, queue)

    def _eta_hold(self, vhost: str, queue: str) -> EtaHold | None:
        found = self._vhosts[vhost].queues.get(queue) if vhost in self._vhosts else None
        return found.extension(EtaHold) if isinstance(found, Queue) else None

    @staticmethod
    def _search(
        keeper: Keeper | None,
        selection: DelayedMessageFilter,
        after: Cursor | None,
        scanned_max: int | None,
    ) -> DelayedMessageSearch | None:
        if keeper is None or keeper.store is None:
            return None
        return DelayedMessageSearch(keeper.store, selection, after, keeper.is_pending, scanned_max)

    async def _by_id(
        self, keeper: Keeper | None, id_: str, owner: str | None = None
    ) -> PendingMessage | None:
        offset = None if keeper is None else keeper.find(id_, owner)
        if keeper is None or keeper.store is None or offset is None:
            return None
        for message in await keeper.store.read([offset]):
            named = full_key(message).id == id_ or broker_offset(id_) == offset
            if keeper.is_pending(offset) and named:
                return message
        return None


def row_of(message: PendingMessage) -> dict[str, object]:
    """Return a message's data for lists."""
    repetition = repetition_of(message)
    key, held = full_key(message), message.stored
    headers = held.open_headers
    return {
        "id": key.id,
        "broker_id": broker_id(message),
        "user": key.owner or None,
        "due_ms": message.due_ms,
        "exchange": message.exchange.decode(errors="replace"),
        "routing_key": message.routing_key.decode(errors="replace"),
        "payload_bytes": len(message.body),
        "persistent": bool(message.flags & RecordFlag.PERSISTENT),
        "repeat_every_ms": None if repetition is None else repetition.every_ms,
        "cron": None if repetition is None else repetition.cron,
        "deliveries_left": None if repetition is None else repetition.count,
        "message_id": plain(held.property("message_id")),
        "headers": plain(
            {name: value for name, value in headers.items() if name != SCHEDULE_OWNER}
        ),
    }


def _told(vhost: str, message: PendingMessage) -> dict[str, object]:
    return {
        "vhost": vhost,
        "id": full_key(message).id,
        "exchange": message.exchange.decode(errors="replace"),
        "routing_key": message.routing_key.decode(errors="replace"),
    }
