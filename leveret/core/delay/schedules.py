"""What people and programs do with delayed messages: look, cancel, put off, deliver at once.

Called for the command line and by `leveret.core.delay.schedule_commands`; everything is of one
virtual host. Messages are chosen by id or by a `Selection`. A long list is worked through in pages,
with a pass of the loop between them: what is added meanwhile is not met, what becomes due is left
alone. Changes are told as events `schedule.cancelled` and `schedule.rescheduled`, in the name of
whoever acts (see leveret.core.telemetry.events).
"""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import coroutine
from typing import TYPE_CHECKING, Protocol

from leveret.core.delay.scheduled import full_id, repetition_of, rescheduled
from leveret.core.json_fields import plain
from leveret.core.routing.message import StoredMessage
from leveret.ports.records import RecordFlag

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Generator, Sequence

    from leveret.core.delay.delayed_delivery import DelayedDelivery
    from leveret.core.delay.eta_hold import EtaHold
    from leveret.core.logs.appender import Waiter
    from leveret.core.telemetry.events import Emit
    from leveret.core.waiting.room import Waiting, WaitingRoom

__all__ = ["Cursor", "Page", "Schedules", "Selection"]

# Messages in one turn of the loop: some milliseconds, bodies of usual sizes included.
PAGE_MESSAGES = 200
OFFSET_LAST = (1 << 63) - 1

Cursor = tuple[int, int]  # due time and offset of the last message seen


@dataclass(frozen=True, slots=True)
class Selection:
    """Which messages: those for which all holds that is stated.

    Header values may be given as text, whatever they are on the wire.
    """

    exchange: str | None = None
    routing_key: str | None = None
    headers: Mapping[str, object] = field(default_factory=dict)
    due_from_ms: int | None = None
    due_before_ms: int | None = None

    @property
    def is_everything(self) -> bool:
        """Whether nothing is stated."""
        return self == Selection()

    def includes(self, message: Waiting) -> bool:
        """Whether a message is one of those; its due time has been looked at."""
        if self.exchange is not None and message.exchange != self.exchange.encode():
            return False
        if self.routing_key is not None and message.routing_key != self.routing_key.encode():
            return False
        if not self.headers:
            return True
        own = _stored(message).open_headers
        return all(
            name in own and (own[name] == wanted or _text(own[name]) == wanted)
            for name, wanted in self.headers.items()
        )


class Keeper(Protocol):
    """Whoever keeps messages in a waiting room."""

    @property
    def room(self) -> WaitingRoom | None:
        """The room, if there is one by now."""
        ...

    @property
    def closed(self) -> bool:
        """Whether everything in it is gone."""
        ...

    def find(self, id_: str) -> int | None:
        """The offset of a pending message."""
        ...

    def is_pending(self, offset: int) -> bool:
        """Whether a message waits for its time."""
        ...

    def cancel(self, message: Waiting) -> bool:
        """Deliver a message never. False where it is too late for that."""
        ...


@dataclass(frozen=True, slots=True)
class Page:
    """Some rows of a list; `following` is where the next page begins, None at the end."""

    rows: list[dict[str, object]]
    following: Cursor | None


class Schedules:
    """The delayed messages of a node, for whoever manages them."""

    def __init__(
        self,
        delayed: DelayedDelivery,
        eta_hold: Callable[[str, str], EtaHold | None],
        emit: Emit,
        wall_ms: Callable[[], int],
    ) -> None:
        """`eta_hold(vhost, queue)` is what a queue holds its tasks in."""
        self._delayed = delayed
        self._eta_hold = eta_hold
        self._emit = emit
        self.wall_ms = wall_ms

    # -- looking

    def pending_count(self, vhost: str, queue: str | None = None) -> int:
        """How many messages wait, in a virtual host or as tasks of one queue."""
        keeper = self._keeper(vhost, queue)
        return 0 if keeper is None or keeper.room is None else keeper.room.pending_count

    async def page(
        self,
        vhost: str,
        selection: Selection,
        count_max: int,
        after: Cursor | None = None,
        *,
        queue: str | None = None,
    ) -> Page:
        """The next `count_max` messages, in due order. Raises StorageError."""
        rows: list[dict[str, object]] = []
        last = after
        keeper = self._keeper(vhost, queue)
        if keeper is None:
            return Page(rows, None)
        async for found in self._found(keeper, selection, after):
            for message in found:
                if len(rows) == count_max:
                    return Page(rows, last)
                rows.append(row_of(message))
                last = (message.due_ms, message.offset)
        return Page(rows, None)

    async def show(
        self, vhost: str, id_: str, *, queue: str | None = None
    ) -> dict[str, object] | None:
        """One message with its headers and its payload; None where none has the id."""
        message = await self._by_id(self._keeper(vhost, queue), id_)
        if message is None:
            return None
        body = message.body
        try:
            payload, encoding = body.decode(), "string"
        except UnicodeDecodeError:
            payload, encoding = b64encode(body).decode(), "base64"
        return {**row_of(message), "payload": payload, "payload_encoding": encoding}

    # -- changing

    async def cancel(self, vhost: str, chosen: str | Selection, *, queue: str | None = None) -> int:
        """Never deliver these. Returns how many. Raises StorageError."""
        keeper = self._keeper(vhost, queue)

        def cancel(message: Waiting) -> bool:
            if keeper is None or not keeper.cancel(message):
                return False
            self._emit("schedule.cancelled", _told(vhost, message))
            return True

        return await self._each(keeper, chosen, cancel)

    async def reschedule(self, vhost: str, chosen: str | Selection, due_ms: int) -> int:
        """Deliver these at another time. Returns how many. Raises StorageError."""
        messages = self._delayed.find(vhost)

        def reschedule(message: Waiting) -> bool:
            if messages is None or not messages.is_pending(message.offset):
                return False
            messages.replace(message, rescheduled(message, due_ms))
            told = _told(vhost, message)
            told |= {"due_ms": due_ms, "due_ms_before": message.due_ms}
            self._emit("schedule.rescheduled", told)
            return True

        return await self._each(messages, chosen, reschedule)

    async def deliver_now(self, vhost: str, chosen: str | Selection) -> int:
        """Deliver these at once. Returns how many. Raises StorageError."""
        return await self.reschedule(vhost, chosen, self.wall_ms())

    def await_commit(self, vhost: str, waiter: Waiter) -> None:
        """Tell a waiter once all that was scheduled anew is safe, or could not be written."""
        messages = self._delayed.find(vhost)
        if messages is None:
            waiter.done(failed=False)
        else:
            messages.room.await_commit(waiter)

    async def _each(
        self, keeper: Keeper | None, chosen: str | Selection, change: Callable[[Waiting], bool]
    ) -> int:
        if isinstance(chosen, str):
            message = await self._by_id(keeper, chosen)
            return int(message is not None and change(message))
        count = 0
        if keeper is not None:
            async for found in self._found(keeper, chosen, None):
                count += sum(map(change, found))
        return count

    # -- finding

    def _keeper(self, vhost: str, queue: str | None) -> Keeper | None:
        """Who keeps the messages of a virtual host, or the tasks of a queue."""
        return self._delayed.find(vhost) if queue is None else self._eta_hold(vhost, queue)

    async def _by_id(self, keeper: Keeper | None, id_: str) -> Waiting | None:
        offset = None if keeper is None else keeper.find(id_)
        if keeper is None or keeper.room is None or offset is None:
            return None
        for message in await keeper.room.read([offset]):
            if keeper.is_pending(offset) and full_id(message) == id_:
                return message
        return None

    async def _found(
        self, keeper: Keeper, selection: Selection, after: Cursor | None
    ) -> AsyncIterator[Sequence[Waiting]]:
        room = keeper.room
        if room is None:
            return
        stop = room.log.end
        if after is None and selection.due_from_ms:
            after = (selection.due_from_ms - 1, OFFSET_LAST)
        while not keeper.closed:
            places = room.scan(after, selection.due_before_ms, PAGE_MESSAGES)
            if not places:
                return
            after = places[-1]
            read = await room.read([offset for _, offset in places if offset < stop])
            read.sort(key=lambda message: (message.due_ms, message.offset))
            yield [
                message
                for message in read
                if keeper.is_pending(message.offset) and selection.includes(message)
            ]
            await _pass()


@coroutine
def _pass() -> Generator[None, None, None]:
    """Let the loop do what else there is to do."""
    yield


def row_of(message: Waiting) -> dict[str, object]:
    """A message as lists show it."""
    repetition = repetition_of(message)
    return {
        "id": full_id(message),
        "due_ms": message.due_ms,
        "exchange": message.exchange.decode(errors="replace"),
        "routing_key": message.routing_key.decode(errors="replace"),
        "payload_bytes": len(message.body),
        "persistent": bool(message.flags & RecordFlag.PERSISTENT),
        "repeat_every_ms": None if repetition is None else repetition.every_ms,
        "cron": None if repetition is None else repetition.cron,
        "deliveries_left": None if repetition is None else repetition.count,
        "headers": plain(_stored(message).open_headers),
    }


def _stored(message: Waiting) -> StoredMessage:
    return StoredMessage(
        message.exchange, message.routing_key, message.header, message.body, message.flags
    )


def _told(vhost: str, message: Waiting) -> dict[str, object]:
    return {
        "vhost": vhost,
        "id": full_id(message),
        "exchange": message.exchange.decode(errors="replace"),
        "routing_key": message.routing_key.decode(errors="replace"),
    }


def _text(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, bytes | bytearray):
        return value.decode(errors="replace")
    return str(value)
