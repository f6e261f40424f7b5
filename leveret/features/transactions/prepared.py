"""Prepared messages of one virtual host, kept in the topic `leveret.prepared` until decided.

A record is the message as it was published. A commit writes it to its queues and settles it here in
one atomic write; a rollback settles it. Memory has their offsets, and when their publishers are
asked next; the number of questions is written as a record of its own, which has no content header:
the id as routing key, and as body a u32 with the number.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, cast

from leveret.core.logs.log_restore import LogRestore
from leveret.core.logs.log_scan import LogScan
from leveret.core.logs.log_writer import LogWriter
from leveret.core.routing.message import MadeMessage, StoredMessage, raw_headers
from leveret.errors import ChannelError, LeveretError, StorageError
from leveret.features.dead_letter.rules import all_keys
from leveret.features.dedup.exchange_log import key_in
from leveret.features.transactions.rules import PREPARE_ID, PrepareRequest, read_prepare_request
from leveret.ports.after_all import AfterAll
from leveret.ports.log_text import quoted
from leveret.ports.records import RecordFlag

if TYPE_CHECKING:
    from collections.abc import Callable

    from leveret.core.dependencies import CoreServices
    from leveret.core.logs.log_writer import Waiter
    from leveret.core.queues.declared_queue import DeclaredQueue
    from leveret.core.routing.message import Message
    from leveret.core.vhost import Vhost
    from leveret.ports import TopicLog
    from leveret.ports.records import Batch


__all__ = ["PREPARED_TOPIC", "Pending", "PreparedMessages"]

PREPARED_TOPIC = "leveret.prepared"
CHECKS = struct.Struct("<I")
CHECKS_AT_ONCE_MAX = 500  # publishers asked in one turn


@dataclass(slots=True)
class Pending:
    """Prepared message that is not decided yet."""

    request: PrepareRequest
    offset: int
    time_ms: int  # when it was published
    exchange: str
    routing_key: str
    key: bytes | None  # its key in its exchange's window
    checks: int = 0  # number of questions to its publisher
    note: int | None = None  # offset of the record with that number
    due_ms: int | None = None  # time of the next question
    is_being_decided: bool = False

    def row(self) -> dict[str, object]:
        """Return the message's data for listings."""
        return {
            "id": self.request.id,
            "exchange": self.exchange,
            "routing_key": self.routing_key,
            "prepared_at": self.time_ms,
            "check_queue": self.request.check_queue,
            "checks": self.checks,
            "next_check_at": self.due_ms,
        }


class PreparedMessages(LogWriter):
    """Prepared messages of one virtual host. `held` until those of an earlier run are restored.

    A publisher is asked at most `checks_max` times; `forget_key(vhost, key)` removes a key from an
    exchange's window.
    """

    def __init__(
        self,
        vhost: Vhost,
        log: TopicLog,
        services: CoreServices,
        forget_key: Callable[[str, bytes | None], None],
        checks_max: int,
    ) -> None:
        super().__init__(log, services.turn, services.report)
        self.vhost = vhost
        self._services = services
        self._forget_key = forget_key
        self._checks_max = checks_max
        self._pending: dict[str, Pending] = {}  # in the order in which they were published
        self._timer = services.timers.timer(self._check)
        self.held = log.first < log.end
        if self.held:
            self._restore()

    def __str__(self) -> str:
        return f"prepared messages of vhost {quoted(self.vhost.name)}"

    def __repr__(self) -> str:
        return f"PreparedMessages({self.vhost.name!r})"

    def __len__(self) -> int:
        return len(self._pending)

    def find(self, id_: str) -> Pending | None:
        """Return an undecided prepared message, or None."""
        pending = self._pending.get(id_)
        return None if pending is None or pending.is_being_decided else pending

    def rows(self) -> list[dict[str, object]]:
        """Return the data of all prepared messages, oldest first."""
        return [pending.row() for pending in self._pending.values()]

    async def read(self, after: int, count_max: int) -> list[tuple[Pending, StoredMessage]]:
        """Return prepared messages after an offset, oldest first. Raises StorageError."""
        waiting = (one for one in self._pending.values() if after < one.offset < self.log.committed)
        found = []
        for pending in list(islice(waiting, count_max)):
            if pending.offset in self.log.settled:
                continue  # decided while another one was read
            batches = await self.log.fetch(pending.offset, 1)
            flags, _, exchange, key, header, body = batches[0].record(pending.offset)
            found.append((pending, StoredMessage(exchange, key, header, body, flags)))
        return found

    # -- storing

    def check_address(self, id_: str, message: Message) -> None:
        """Raise ChannelError 406 if another message is kept under this id."""
        pending = self._pending.get(id_)
        if pending is None:
            return
        address = tuple(
            name.decode(errors="replace") for name in (message.exchange, message.routing_key)
        )
        if address != (pending.exchange, pending.routing_key):
            raise ChannelError(
                406,
                f"prepared message '{id_}' waits for exchange '{pending.exchange}' and routing key "
                f"'{pending.routing_key}': state another '{PREPARE_ID}'",
            )

    def add(self, request: PrepareRequest, message: Message, flags: int) -> None:
        """Keep a message; one with a known id is a repetition and ignored."""
        if request.id in self._pending:
            return
        now_ms = self._services.timers.wall_ms()
        offset = self.log.end + self.builder.count
        self.builder.add(
            flags, now_ms, message.exchange, message.routing_key, message.header, message.body
        )
        self._turn.touch(self)
        pending = Pending(
            request,
            offset,
            now_ms,
            message.exchange.decode(errors="replace"),
            message.routing_key.decode(errors="replace"),
            key_in(message.exchange, message),
        )
        self._pending[request.id] = pending
        self._plan_check(pending, now_ms)

    def _show_committed(self) -> None:
        """Do nothing: prepared messages are invisible."""

    def _forget_uncommitted(self) -> None:
        lost = [id_ for id_, held in self._pending.items() if held.offset >= self.log.end]
        for id_ in lost:
            del self._pending[id_]
        for pending in self._pending.values():
            if pending.note is not None and pending.note >= self.log.end:
                pending.note = None
        self._drop_gathered()

    # -- after a start

    def _restore(self) -> None:
        notes: dict[str, tuple[int, int]] = {}
        LogRestore(
            self,
            self._services,
            LogScan(self.log, partial(self._report, self), self.lose),
            partial(self._restore_batch, notes),
            partial(self._restored, notes),
        ).start()

    def _restored(self, notes: dict[str, tuple[int, int]]) -> None:
        now_ms = self._services.timers.wall_ms()
        for id_, (checks, offset) in notes.items():
            pending = self._pending.get(id_)
            if pending is None:
                self.settle([(offset, offset + 1)])
            else:
                pending.checks, pending.note = checks, offset
        for pending in self._pending.values():
            self._plan_check(pending, max(pending.time_ms, now_ms - pending.request.check_after_ms))
        self._release()
        self._turn.touch(self)

    def _restore_batch(self, notes: dict[str, tuple[int, int]], batch: Batch) -> None:
        for offset, flags, time_ms, exchange, key, header, body in batch.records():
            if offset in self.log.settled:
                continue
            if not header:
                id_ = key.decode(errors="surrogateescape")
                if id_ in notes:
                    self.settle([(notes[id_][1], notes[id_][1] + 1)])
                notes[id_] = (CHECKS.unpack(body)[0], offset)
                continue
            message = StoredMessage(exchange, key, header, body, flags)
            request = read_prepare_request(message.headers, message.property("message_id"))
            self._pending[request.id] = Pending(
                request,
                offset,
                time_ms,
                exchange.decode(errors="replace"),
                key.decode(errors="replace"),
                key_in(exchange, message),
            )

    # -- deciding

    def decide(self, pending: Pending, *, commit: bool, decided: Waiter) -> None:
        """Commit or roll back a prepared message; `decided` is notified when that is safe."""
        pending.is_being_decided = True
        self.await_commit(AfterAll(1, partial(self._written, pending, commit, decided)))

    def _written(self, pending: Pending, commit: bool, decided: Waiter, *, failed: bool) -> None:
        """Proceed once the prepared message itself is safe, or fail if it was lost."""
        if failed:
            pending.is_being_decided = False
            decided.done(failed=True)
        elif not commit:
            self._settle(pending, None, decided)
        else:
            try:
                batches = self.log.read(pending.offset, 1)
            except StorageError:
                batches = None
            if batches is None:
                self._services.spawn(self._fetch(pending, decided))
            else:
                self._settle(pending, batches[0], decided)

    async def _fetch(self, pending: Pending, decided: Waiter) -> None:
        try:
            batches = await self.log.fetch(pending.offset, 1)
        except StorageError as error:
            self._report(self, error)
            pending.is_being_decided = False
            decided.done(failed=True)
        else:
            self._settle(pending, batches[0], decided)

    def _settle(self, pending: Pending, batch: Batch | None, decided: Waiter) -> None:
        write = self._services.atomic.begin()
        ranges = [(pending.offset, pending.offset + 1)]
        if pending.note is not None:
            ranges.append((pending.note, pending.note + 1))
        write.settle(self, ranges)
        is_taken = False
        if batch is not None:
            flags, _, exchange, key, header, body = batch.record(pending.offset)
            for queue in self._route(StoredMessage(exchange, key, header, body, flags)):
                write.publish(queue, flags & RecordFlag.STORED, exchange, key, header, body)
                is_taken = True
        write.commit(AfterAll(1, partial(self._settled, pending, is_taken, decided)))

    def _settled(self, pending: Pending, is_taken: bool, decided: Waiter, *, failed: bool) -> None:
        if failed:
            pending.is_being_decided = False
        else:
            self._pending.pop(pending.request.id, None)
            if not is_taken:  # rolled back or unroutable: forget its key
                self._forget_key(self.vhost.name, pending.key)
        decided.done(failed=failed)

    def _route(self, message: StoredMessage) -> list[DeclaredQueue]:
        exchange = self.vhost.exchanges.get(message.exchange.decode())
        if exchange is None:
            return []
        keys = all_keys(message.routing_key, message.header, message.flags)
        return cast("list[DeclaredQueue]", self.vhost.reach(exchange, keys, message))

    # -- questions

    def _plan_check(self, pending: Pending, after_ms: int) -> None:
        if pending.request.check_queue is None or pending.checks >= self._checks_max:
            pending.due_ms = None
            return
        pending.due_ms = after_ms + pending.request.check_after_ms
        if self._timer.due_ms is None or self._timer.due_ms > pending.due_ms:
            self._timer.set(pending.due_ms)

    def _check(self) -> None:
        """Ask the publishers whose time has come."""
        if self.deleted or self.held:
            return
        now_ms = self._services.timers.wall_ms()
        due = [
            pending
            for pending in self._pending.values()
            if pending.due_ms is not None and pending.due_ms <= now_ms
        ]
        for pending in due[:CHECKS_AT_ONCE_MAX]:
            if not pending.is_being_decided and pending.offset < self.log.committed:
                self._note_check(pending, now_ms)
                self._services.spawn(self._ask(pending))
            self._plan_check(pending, now_ms)
        times = [each.due_ms for each in self._pending.values() if each.due_ms is not None]
        if times:
            self._timer.set(max(min(times), now_ms + 1))

    def _note_check(self, pending: Pending, now_ms: int) -> None:
        pending.checks += 1
        if pending.note is not None and pending.note < self.log.committed:
            self.settle([(pending.note, pending.note + 1)])
        pending.note = self.log.end + self.builder.count
        self.builder.add(
            RecordFlag.PERSISTENT,
            now_ms,
            b"",
            pending.request.id.encode(errors="surrogateescape"),
            b"",
            CHECKS.pack(pending.checks),
        )
        self._turn.touch(self)
        if pending.checks == self._checks_max:
            told = (
                f"message '{pending.request.id}' was checked {pending.checks} times"
                " without a decision"
            )
            self._report(
                self,
                LeveretError(
                    f"prepared {told}; it waits for an operator to commit it or roll it back"
                ),
            )

    async def _ask(self, pending: Pending) -> None:
        """Put a question into the queue that the publisher named, if it exists."""
        queue = self.vhost.find_queue(pending.request.check_queue or "")
        if queue is None:
            return
        try:
            batches = await self.log.fetch(pending.offset, 1)
        except StorageError as error:
            self._report(self, error)
            return
        header = batches[0].record(pending.offset)[4]
        headers = {
            **raw_headers(header),
            PREPARE_ID: pending.request.id,
            "x-check-attempt": pending.checks,
            "x-prepare-exchange": pending.exchange,
            "x-prepare-routing-key": pending.routing_key,
        }
        name = queue.definition.name.encode()
        question = MadeMessage(b"", name, headers, persistent=True)
        self._services.publisher.deposit([queue], question)

    # -- the end

    def close(self) -> None:
        """Stop: the virtual host was deleted."""
        self._timer.set(None)
        self._close_publishing()
        self._pending.clear()
