"""The commit of one batch: its messages are routed, and published by atomic writes decided as one.

    parts ─► records, slice by slice ─► routed ─► writes of a megabyte each, for queues ─┐ decided
    part records, what is dropped, the writer's note ─► the last write ──────────────────┘ as one

What a message asks for beyond a route is done as for one of an AMQP transaction: by the publish
interceptors, and by the limits of its queues. Delayed messages reach their store last, right before
the rest is decided; a crash in between may store them twice.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple, cast

from leveret.core.access.authentication import answered
from leveret.core.clients import Origin
from leveret.core.logs.atomic import lacking_room
from leveret.core.logs.log_scan import quarantine
from leveret.core.logs.log_writer import JointCommit
from leveret.core.publish_interceptors import InterceptedPublish, PublishContext
from leveret.core.routing.message import StoredMessage
from leveret.core.routing.sender_selected import selected_keys
from leveret.errors import ChannelError, ConnectionClosingError, CorruptBatchError, StorageError
from leveret.features.staged_batches.records import CommitNote, pack_note
from leveret.features.staged_batches.rules import BatchRefusedError
from leveret.features.staged_batches.staged_router import StagedRouter
from leveret.ports.after_all import AfterAll
from leveret.ports.contents import open_header
from leveret.ports.ranges import RangeSet
from leveret.ports.records import RecordFlag
from leveret.ports.waiting import ended, let_others_run

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

    from leveret.core.logs.atomic import AtomicWrite, JointWrites
    from leveret.core.logs.log_writer import Waiter
    from leveret.core.queues.declared_queue import DeclaredQueue
    from leveret.core.routing.message import Message
    from leveret.core.routing.routes import RouteCache
    from leveret.errors import AmqpError
    from leveret.features.staged_batches.records import StagedPart, WriterId
    from leveret.features.staged_batches.staged import StagedBatches
    from leveret.features.staged_batches.upload_checks import PublishRights
    from leveret.ports.authentication import Kind, Permission
    from leveret.ports.records import Batch

__all__ = ["BatchCommit"]

WORK_MAX: Final = 1024  # records of a slice, or less if they are large or new routes are looked up
READ_BYTES: Final = 1 << 20
WRITE_BYTES: Final = 1 << 20  # of one atomic write, about: a millisecond of the loop
LOOKED_AT_ONCE: Final = 16  # messages that are handled in Python, in a pass of the loop
RENEWED_AT_ONCE: Final = 2  # old notes of other writers that are written anew
STALE_RECORDS: Final = 10_000  # notes that are so far behind the end


class LookedRecord(NamedTuple):
    """A staged record that is handled in Python."""

    flags: int
    time_ms: int
    exchange: bytes
    routing_key: bytes
    header: bytes
    body: bytes


class BatchPublisher:
    """Publisher of a batch's messages for the publish interceptors, who is told nothing."""

    alive = False
    confirms_publishes = False
    is_transactional = True

    def __init__(self, rights: PublishRights) -> None:
        self._rights = rights
        self.origin = Origin("staged batch", 0, rights.user)

    def require(self, permission: Permission, kind: Kind, name: str) -> None:
        """Raise ChannelError 403 unless its user has this permission on the resource."""
        self._rights.require(permission, kind, name)

    def refused(self, first: int, stop: int) -> None:
        """Do nothing: nobody awaits a confirm."""

    def close(self, error: AmqpError) -> None:
        """Do nothing: it is no channel."""

    def send_back(self, message: Message) -> None:
        """Do nothing: what a mandatory batch cannot route refuses it as a whole."""


class BatchCommit:
    """One commit of `parts`; what else is staged of the batch and those before it is dropped.

    If it is `mandatory` each message must find a queue, or nothing is published.
    """

    def __init__(
        self,
        batches: StagedBatches,
        writer: WriterId,
        number: int,
        parts: Sequence[StagedPart],
        rights: PublishRights,
        *,
        mandatory: bool = False,
    ) -> None:
        self._mandatory = mandatory
        self._batches = batches
        self._writer = writer
        self._number = number
        self._parts = parts
        self._rights = rights
        self._core = batches.core
        self._vhost = batches.vhost
        self._publisher = BatchPublisher(rights)
        self._router = StagedRouter(self._routes)
        self._writes: list[AtomicWrite] = []
        self._delayed = RangeSet()  # records that a feature takes
        self._taken = JointCommit()  # by features
        self._looked = 0
        self._began_ms = self._now_ms()
        self._next_write()

    @property
    def messages(self) -> int:
        """Number of messages that were published."""
        return sum(counts.messages for counts in self._router.counts.values())

    @property
    def unrouted(self) -> int:
        """Number of those that no queue has got."""
        return sum(counts.unrouted for counts in self._router.counts.values())

    @property
    def packed_bytes(self) -> int:
        """Bytes of all copies in queues."""
        return self._router.total_bytes

    def _next_write(self) -> AtomicWrite:
        write = self._core.atomic.begin()
        self._writes.append(write)
        self._router.write_to(write.records_for)
        return write

    # -- gathering

    async def gather(self) -> None:
        """Route all messages. Raises BatchRefusedError, ChannelError, StorageError."""
        try:
            for name in sorted({name for part in self._parts for name in part.exchanges}):
                await answered(partial(self._rights.exchange, name.encode()))
            for part in self._parts:
                await self._gather_part(part)
            # Delayed messages stay in their store, even if the rest fails.
            self._check_routed()
            self._check_copies()
            if self._delayed:
                self._check_room()
            async for record in self._records_of(list(self._delayed)):
                await answered(partial(self._publish, record))
        except ConnectionClosingError as error:
            raise BatchRefusedError("refused", error.explanation) from None
        except ChannelError as error:
            if error.code in {403, 404}:
                raise
            raise BatchRefusedError("refused", error.explanation) from None
        if not await ended(self._taken.await_commit):
            raise StorageError("delayed messages of the batch could not be stored")

    def _check_routed(self) -> None:
        """Raise BatchRefusedError if messages are mandatory that no queue has got."""
        address = self._router.first_unrouted
        if not self._mandatory or address is None:
            return
        exchange, key = (each.decode(errors="replace") for each in address)
        raise BatchRefusedError(
            "refused",
            f"messages that no queue gets: {self.unrouted}, the first one to exchange "
            f"'{exchange}' with routing key '{key}'; nothing is published",
        )

    def _check_copies(self) -> None:
        """Raise StorageError if a queue lacks copies, so that the writes would fail."""
        for write in self._writes:
            queue = write.lacking_copies()
            if queue is not None:
                raise StorageError(
                    f"the batch could not be stored: {queue} has too few copies in sync"
                )

    def _check_room(self) -> None:
        """Raise BatchRefusedError if a queue is full, so that the writes would fail."""
        queue = lacking_room(self._writes)
        if queue is not None:
            raise BatchRefusedError("refused", f"{queue} has no room for the messages of the batch")

    async def _gather_part(self, part: StagedPart) -> None:
        try:
            for first, stop in part.ranges:
                await self._gather_range(first, stop)
        except CorruptBatchError:
            raise self._batches.lost_part(part) from None

    async def _gather_range(self, first: int, stop: int) -> None:
        router = self._router
        router.offset = first
        while router.offset < stop:
            for batch in await self._fetch(router.offset):
                end = min(stop, batch.stop_offset)
                while router.offset < end:
                    await answered(partial(router.pack, batch, end, self._now_ms(), WORK_MAX))
                    if router.needs_look:
                        await self._look(batch, router.offset)
                        router.offset += 1
                    await self._slice_done()

    async def _slice_done(self) -> None:
        """Check what has gathered, and let others run."""
        limits, router = self._batches.limits, self._router
        if router.total_bytes > limits.commit_bytes_max:
            raise BatchRefusedError(
                "too_large",
                f"the batch takes more than {limits.commit_bytes_max} bytes in its queues: "
                "use smaller batches",
            )
        if router.packed_bytes >= WRITE_BYTES:
            self._next_write()
        self._looked += router.needs_look
        if not router.needs_look or self._looked % LOOKED_AT_ONCE == 0:
            await let_others_run()
        if self._batches.records.deleted:
            raise BatchRefusedError("not_found", "the virtual host was deleted")

    async def _fetch(self, offset: int) -> list[Batch]:
        """Return batches, of which the first has `offset`. Raises StorageError."""
        log = self._batches.records.log
        try:
            batches = await log.fetch(offset, READ_BYTES)
        except CorruptBatchError:
            records = self._batches.records
            await quarantine(log, offset, partial(self._core.report, self._batches), records.lose)
            raise
        if not batches or not batches[0].base_offset <= offset < batches[0].stop_offset:
            raise CorruptBatchError(f"offset {offset} is missing from its log")
        return batches

    async def _records_of(self, ranges: Sequence[tuple[int, int]]) -> AsyncIterator[LookedRecord]:
        for first, stop in ranges:
            offset = first
            while offset < stop:
                for batch in await self._fetch(offset):
                    while offset < min(stop, batch.stop_offset):
                        yield LookedRecord(*batch.record(offset))
                        offset += 1
                        await self._slice_done()

    def _now_ms(self) -> int:
        return self._core.timers.wall_ms()

    def _routes(self, name: bytes) -> RouteCache | None:
        """Return the routes of an exchange; None where each message must be looked at."""
        cache = self._rights.exchange(name)
        exchange: Any = cache.exchange
        if self._vhost.traced or exchange.dedup_window_ms is not None:
            return None
        return None if self._rights.restricts_keys(cache) else cache

    # -- messages that are looked at

    async def _look(self, batch: Batch, offset: int) -> None:
        record = LookedRecord(*batch.record(offset))
        publish = self._intercepted(self._context(record))
        await answered(partial(self._require_keys, publish.context))
        if not await answered(publish.would_be_taken):
            await answered(partial(self._publish, record))
        elif self._core.publish_interceptors.lacks_copies(publish.context):
            raise StorageError(
                "the batch could not be stored: a queue of its delayed messages has too few copies "
                "in sync"
            )
        else:
            self._delayed.add(offset, offset + 1)

    def _context(self, record: LookedRecord) -> PublishContext:
        """Return what publish interceptors look at. Raises ChannelError."""
        flags, keys, header = record.flags & RecordFlag.STORED, [record.routing_key], record.header
        if record.flags & RecordFlag.SELECTS_KEYS:
            further, is_blind = selected_keys(header)
            keys = list(dict.fromkeys((record.routing_key, *further)))
            if is_blind:
                flags |= RecordFlag.BLIND_COPIED
                header = open_header(header)
        return PublishContext(
            self._vhost,
            StoredMessage(record.exchange, record.routing_key, header, record.body, flags),
            keys,
            record.flags & ~RecordFlag.STORED,
            mandatory=False,
            tag=0,
            user=self._rights.user,
            channel=self._publisher,
            now_ms=self._began_ms,
        )

    def _publish(self, record: LookedRecord) -> None:
        """Publish one message, or have a feature take it. Raises ChannelError, UnansweredError."""
        name, context = record.exchange, self._context(record)
        keys, seen = context.keys, context.message
        exchange = self._require_keys(context)
        if self._is_taken(context):
            self._router.counts_of(name).add(1)
            return
        texts = [key.decode(errors="replace") for key in keys]
        queues = cast("list[DeclaredQueue]", self._vhost.route(exchange, texts, seen))
        for queue in queues:
            self._writes[-1].publish(
                queue, seen.flags, name, record.routing_key, record.header, record.body
            )
        self._router.counts_of(name).add(len(queues))
        if not queues:
            self._router.note_unrouted(name, record.routing_key)
        self._router.note_packed((len(record.header) + len(record.body)) * len(queues))
        if self._vhost.traced:
            names = [queue.definition.name for queue in queues]
            self._core.tracer.published(self._vhost, seen, keys, names, self._publisher.origin)

    def _require_keys(self, context: PublishContext) -> Any:
        """Return the exchange of a message, whose keys its user may publish with.

        Raises ChannelError, UnansweredError.
        """
        cache = self._rights.exchange(context.message.exchange)
        exchange: Any = cache.exchange
        if self._rights.restricts_keys(cache):
            for key in context.keys:
                self._rights.require_key(exchange.name, key)
        return exchange

    def _is_taken(self, context: PublishContext) -> bool:
        """Whether a feature has taken a message. Raises ChannelError."""
        committing = self._intercepted(context).intercept()
        if committing is None:
            return False
        self._taken.add(committing)
        return True

    def _intercepted(self, context: PublishContext) -> InterceptedPublish:
        interceptors = self._core.publish_interceptors.for_publish(
            self._vhost, context.message.exchange, context.requests
        )
        return InterceptedPublish(context, interceptors)

    # -- how it ends

    def begin(self, waiter: Waiter) -> JointWrites:
        """Have everything decided; `waiter` is told how that has ended."""
        batches = self._batches
        note = CommitNote(self._writer, self._number, self._now_ms())
        write, known_writer = self._next_write(), batches.book.find(self._writer)
        dropped = [] if known_writer is None else known_writer.parts_up_to(self._number)
        ranges = RangeSet(each for part in dropped for each in part.ranges)
        settled = [(part.offset, part.offset + 1) for part in dropped]
        renewed = [
            known
            for known in batches.book.oldest_notes(RENEWED_AT_ONCE)
            if known.writer != note.writer and known.offset + STALE_RECORDS < batches.notes.log.end
        ]
        last = None if known_writer is None else known_writer.note
        before = renewed if last is None else [last, *renewed]
        settled += [(known.offset, known.offset + 1) for known in before]
        notes = [
            note,
            *(CommitNote(known.writer, known.number, known.time_ms) for known in renewed),
        ]
        for each in notes:
            batches.notes.put_in(write, each.writer.name, pack_note(each))
        write.settle(batches.records, list(ranges))
        write.settle(batches.notes, list(RangeSet(settled)))
        done = partial(self._ended, dropped, notes, waiter)
        return self._core.atomic.commit_together(self._writes, AfterAll(1, done))

    def _ended(
        self,
        dropped: Sequence[StagedPart],
        notes: Sequence[CommitNote],
        waiter: Waiter,
        *,
        failed: bool,
    ) -> None:
        batches = self._batches
        if not failed and not batches.notes.deleted:
            batches.book.remove(dropped)
            for at, note in enumerate(notes):
                note.offset = batches.notes.first + at
                batches.book.note(note)
            for name, counts in self._router.counts.items():
                exchange = self._vhost.exchanges.get(name.decode(errors="replace"))
                counters = None if exchange is None else exchange.counters
                counts.count(counters, self._vhost.counters)
        waiter.done(failed=failed)
