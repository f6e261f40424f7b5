"""Redrive: move dead letters back to where they came from, or to another exchange.

Each move is one atomic write that publishes messages and settles them in the source queue: after a
crash a message is in exactly one place. A queue has at most one running redrive. It covers the
messages present when it began, in steps, at its own rate; it ends when the node stops, leaving the
rest where it is. `leveret.features.dead_letter.redrive_rules` decides what is selected and when the
next may move.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

from leveret.core.admin.node import partition_of
from leveret.core.definitions.validation import AdministrationError
from leveret.core.logs.window import LogWindow
from leveret.core.queues.queue import Queue
from leveret.core.routing.message import StoredMessage
from leveret.errors import CorruptBatchError, StorageError
from leveret.features.dead_letter.redrive_rules import (
    DeadLetterFilter,
    Pace,
    RedriveProgress,
    RedriveState,
    revived_headers,
)
from leveret.features.dead_letter.scan import StoredDeadLetter, dead_letter_at
from leveret.ports.contents import headers_table, with_properties
from leveret.ports.ranges import RangeSet
from leveret.ports.records import RecordFlag
from leveret.ports.tables import MalformedFieldError, decode_raw_table, encode_table

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterable, Mapping

    from leveret.core.events import Emit
    from leveret.core.logs.atomic import AtomicWrite, AtomicWrites
    from leveret.core.queues.declared_queue import DeclaredQueue
    from leveret.core.timers import Timers
    from leveret.core.vhost import Vhost
    from leveret.ports.records import Batch

__all__ = ["Redrive", "Redrives", "Target"]

# Messages per atomic write: enough that the flush costs little for each, few enough that this many
# large messages fit into memory, and that a pause takes effect at once.
MOVED_AT_ONCE_MAX = 100
MOVED_BYTES_MAX = 4 * 1024 * 1024
# Records read in one turn of the loop, if few are selected.
LOOKED_AT_MAX = 1000
# Interval before a full target is tried again, then with one message at a time.
REFUSED_MS = 200
REFUSALS_MAX = 3
# Ended redrives that can still be queried.
REMEMBERED_MAX = 1000


@dataclass(frozen=True, slots=True)
class Target:
    """Destination of a redrive; without an exchange, where the messages came from.

    That is the queue in which they died, or with `routed`, or if it was deleted, the queues that
    their original exchange and routing keys lead to.
    """

    exchange: str | None = None
    routing_key: str | None = None  # None: the original one of each message
    routed: bool = False


class Redrives:
    """Redrives of a node, by source queue."""

    def __init__(
        self,
        vhosts: Mapping[str, Vhost],
        writes: AtomicWrites,
        timers: Timers,
        spawn: Callable[[Coroutine[object, object, None]], object],
        emit: Emit,
    ) -> None:
        self.vhosts = vhosts
        self.writes = writes
        self.timers = timers
        self.spawn = spawn
        self.emit = emit
        self._latest: dict[Queue, Redrive] = {}

    def queue(self, vhost: str, name: str, partition: int | None = None) -> Queue:
        """Return a partition that messages can be moved from; a plain queue is its only one.

        Raises AdministrationError.
        """
        return partition_of(self.whole(vhost, name), partition)  # type: ignore[return-value]  # no stream

    def whole(self, vhost: str, name: str) -> DeclaredQueue:
        """Return a queue that messages can be moved from. Raises AdministrationError."""
        if vhost not in self.vhosts:
            raise AdministrationError("not_found", f"vhost '{vhost}' does not exist")
        queue = self.vhosts[vhost].queues.get(name)
        if queue is None:
            raise AdministrationError("not_found", self.vhosts[vhost].no_queue(name))
        whole = cast("DeclaredQueue", queue)
        if whole.settings.is_stream:
            raise AdministrationError("invalid", f"queue '{name}' is a stream")
        return whole

    def start(
        self, queue: Queue, selection: DeadLetterFilter, target: Target, per_second: float | None
    ) -> Redrive:
        """Start moving the selected messages now in the queue. Raises AdministrationError."""
        latest = self._latest.get(queue)
        if latest is not None and not latest.progress.phase.has_ended:
            raise AdministrationError(
                "already_exists", f"queue '{queue.name}' is being redriven already"
            )
        exchanges = self.vhosts[queue.definition.vhost].exchanges
        if target.exchange is not None and target.exchange not in exchanges:
            raise AdministrationError("not_found", f"no exchange '{target.exchange}'")
        self._forget()
        redrive = self._latest[queue] = Redrive(self, queue, selection, target, per_second)
        redrive.begin()
        return redrive

    def latest(self, queue: Queue) -> Redrive:
        """Return the queue's current or last redrive. Raises AdministrationError."""
        if queue not in self._latest:
            raise AdministrationError("not_found", f"queue '{queue.name}' is not being redriven")
        return self._latest[queue]

    def _forget(self) -> None:
        for queue in [queue for queue in self._latest if queue.deleted]:
            del self._latest[queue]
        while len(self._latest) >= REMEMBERED_MAX:
            ended = (q for q, latest in self._latest.items() if latest.progress.phase.has_ended)
            oldest = next(ended, None)
            if oldest is None:
                raise AdministrationError("limit", "too many queues are being redriven")
            del self._latest[oldest]


class Redrive:
    """Redrive of one queue; also the waiter of each of its atomic writes."""

    def __init__(
        self,
        redrives: Redrives,
        queue: Queue,
        selection: DeadLetterFilter,
        target: Target,
        per_second: float | None,
    ) -> None:
        log = queue.log
        self.queue = queue
        self.selection = selection
        self.target = target
        self.per_second = per_second
        self._redrives = redrives
        self._vhost = redrives.vhosts[queue.definition.vhost]
        self._window = LogWindow(log)
        self._offset, self._stop = log.first, log.committed
        self.progress = RedriveProgress(total=log.settled.gaps(self._offset, self._stop).count)
        self._pace = Pace(per_second, redrives.timers.wall_ms())
        self._timer = redrives.timers.timer(self._step)
        self._moving: list[StoredDeadLetter] = []
        self._write: AtomicWrite | None = None  # the atomic write that moves them
        self._at_once = MOVED_AT_ONCE_MAX
        self._refusals = 0
        self._busy = False
        self._before = (0, 0, 0)  # state before the last step: offset, looked at, unroutable

    # -- commands

    def begin(self) -> None:
        """Start moving."""
        self._tell("dead_letters.redrive_started")
        self._soon()

    def pause(self) -> None:
        """Pause until `resume`. Raises AdministrationError."""
        self._become(RedriveState.PAUSED)

    def resume(self) -> None:
        """Resume after a pause. Raises AdministrationError."""
        self._become(RedriveState.RUNNING)
        self._soon()

    def cancel(self) -> None:
        """Stop for good. Raises AdministrationError."""
        self._become(RedriveState.CANCELLED)

    def _become(self, phase: RedriveState) -> None:
        if not self.progress.phase.may_become(phase):
            raise AdministrationError(
                "invalid", f"a redrive that is {self.progress.phase} cannot be {phase}"
            )
        self.progress.phase = phase
        self._tell(f"dead_letters.redrive_{phase}")
        if phase.has_ended:
            self._timer.set(None)
            self._window.clear()

    def _end(self, phase: RedriveState, explanation: str = "") -> None:
        if not self.progress.phase.has_ended:
            self.progress.explanation = explanation
            self._become(phase)

    def _tell(self, event: str) -> None:
        queue = self.queue.definition
        moved = self.progress.moved
        self._redrives.emit(event, {"queue": queue.name, "vhost": queue.vhost, "moved": moved})

    # -- steps

    def _soon(self, wait_ms: int = 0) -> None:
        """Schedule the next step in a turn of its own."""
        self._timer.set(self._redrives.timers.wall_ms() + wait_ms)

    def _step(self) -> None:
        """Read some records, and move those that are selected, as many as the rate allows."""
        if self._busy or self.progress.phase is not RedriveState.RUNNING:
            return
        if self.queue.deleted:
            self._end(RedriveState.FAILED, "the queue is gone")
            return
        first = self.queue.log.settled.gaps(self._offset, self._stop).first
        if first is None:
            self._end(RedriveState.DONE)
            return
        try:
            batches = self._window.at_hand(first)
        except CorruptBatchError:
            batches = None
        if batches is None:
            self._busy = True
            self._redrives.spawn(self._fetch(first))
            return
        found = self._select(batches, first)
        if found:
            self._move(found)
        else:
            self._soon(self._pace.wait_ms)

    async def _fetch(self, offset: int) -> None:
        try:
            await self._window.fill(offset)
        except CorruptBatchError:
            self._offset = offset + 1  # left to deliveries, which handle the damage
        except StorageError as error:
            self._end(RedriveState.FAILED, str(error))
        finally:
            self._busy = False
        self._soon()

    def _select(self, batches: list[Batch], first: int) -> list[StoredDeadLetter]:
        """Return the next selected messages that may move now, and advance past the others."""
        self._before = (first, self.progress.looked_at, self.progress.unroutable)
        room, size = self._pace.allowance(self._redrives.timers.wall_ms(), self._at_once), 0
        found: list[StoredDeadLetter] = []
        behind = min(batches[-1].stop_offset, self._stop, first + LOOKED_AT_MAX)
        ready = RangeSet(self.queue.state.ready_in(first, behind))
        for batch in batches:
            for offset in range(max(first, batch.base_offset), min(behind, batch.stop_offset)):
                if len(found) >= room or size >= MOVED_BYTES_MAX:
                    self._pace.give_back(room - len(found))
                    return found
                self._offset = offset + 1
                if offset in self.queue.log.settled:
                    continue
                self.progress.looked_at += 1
                if offset not in ready:
                    continue  # leased by a consumer
                letter = dead_letter_at(batch, offset)
                if self.selection.has(letter.told):
                    found.append(letter)
                    size += len(letter.body)
        self._pace.give_back(room - len(found))
        return found

    # -- moving

    def _move(self, found: list[StoredDeadLetter]) -> None:
        queue = self.queue
        write = self._redrives.writes.begin()
        for letter in found:
            exchange, keys = self._address(letter)
            header = _revived(letter.header)
            flags = letter.flags & ~(RecordFlag.DEAD_LETTERED | RecordFlag.RETRIED)
            flags |= RecordFlag.PUT_BACK
            targets = self._targets(letter, exchange, keys, header, flags)
            if not targets:
                self.progress.unroutable += 1
                self._pace.give_back(1)
                continue
            self._moving.append(letter)
            for target in targets:
                write.publish(
                    target, flags, exchange.encode(), keys[0].encode(), header, letter.body
                )
        if not self._moving:
            self._soon()
            return
        queue.state.withdraw(self._ranges())
        write.erase(queue, self._ranges())
        self._busy = True
        self._write = write
        write.commit(self)

    def _address(self, letter: StoredDeadLetter) -> tuple[str, list[str]]:
        """Return the exchange and the keys that a message is published with."""
        told, target = letter.told, self.target
        own = letter.routing_key.decode(errors="replace")
        keys = list(told.routing_keys) or [own]
        if target.exchange is None:
            return told.exchange or "", keys
        return target.exchange, keys if target.routing_key is None else [target.routing_key]

    def _targets(
        self, letter: StoredDeadLetter, exchange: str, keys: list[str], header: bytes, flags: int
    ) -> Iterable[DeclaredQueue]:
        """Return the target queues of a message; none if its origin is unknown."""
        if self.target.exchange is None:
            if letter.told.queue is None:
                return ()
            home = None if self.target.routed else self._vhost.find_queue(letter.told.queue)
            if home is not None:
                return [cast("DeclaredQueue", home)]
        if exchange not in self._vhost.exchanges:
            return ()
        message = StoredMessage(exchange.encode(), keys[0].encode(), header, letter.body, flags)
        found = self._vhost.reach(self._vhost.exchanges[exchange], keys, message)
        return [cast("DeclaredQueue", queue) for queue in found]

    def _ranges(self) -> list[tuple[int, int]]:
        return [(letter.told.offset, letter.told.offset + 1) for letter in self._moving]

    def done(self, *, failed: bool) -> None:
        """Handle the end of an atomic write, as a Waiter: the messages moved, or stay."""
        moved, self._moving = self._moving, []
        self._busy = False
        write, self._write = self._write, None
        if not failed:
            self.progress.moved += len(moved)
            self._refusals, self._at_once = 0, MOVED_AT_ONCE_MAX
            self._soon()
            return
        if self.queue.deleted:
            self._soon()
            return
        ranges = [(letter.told.offset, letter.told.offset + 1) for letter in moved]
        self.queue.return_(ranges, failed=False)
        self._pace.give_back(len(moved))
        if write is not None and write.error is not None:
            self._end(RedriveState.FAILED, str(write.error))
            return
        self._refuse(moved)

    def _refuse(self, refused: list[StoredDeadLetter]) -> None:
        """Retry messages one at a time after a refusal, and skip one refused too often."""
        self._at_once = 1
        self._refusals += 1
        if len(refused) == 1 and self._refusals > REFUSALS_MAX:
            self._refusals = 0
            self.progress.refused += 1
        else:
            self._offset, self.progress.looked_at, self.progress.unroutable = self._before
        self._soon(REFUSED_MS)


def _revived(header: bytes) -> bytes:
    """Return a content header without the history of deaths and attempts."""
    try:
        headers = decode_raw_table(headers_table(header))
    except (MalformedFieldError, ValueError):
        return header
    return with_properties(header, table=encode_table(revived_headers(headers)))
