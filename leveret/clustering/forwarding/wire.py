"""Messages of a forwarding stream. All integers are little-endian.

A stream is opened with JSON: {"key": partition, "epoch": of its leader, "sequence": of the first
record that is to come}. Each message begins with a byte that says what it is.

    from the client's node
    PUBLISH    a batch; its base offset is the sequence number of its first record
    CONSUME    u32 consumer, u8 flags, i64 priority, u32 credit, the arguments as an AMQP table
    CANCEL     u32 consumer
    CREDIT     u32 consumer, u32 messages, u32 bytes: it may be sent so much more
    SETTLE     u8 what becomes of the records, u8 cause, ranges of offsets
    GET        u32 request
    REFRESH    u32 request
    PURGE      u32 request
    LOOK_UP    u32 request, u8 flags, u64 time: what can be read, and since when
    PREPARE    u64 transaction, u32 how many ranges of offsets it settles, these, a batch or nothing
    RESOLVE    u64 transaction, u8 whether it has committed

    from the leader
    COMMITTED  u64 sequence number: all records below it are committed
    FAILED     ranges of sequence numbers: they are not stored
    REFUSED    ranges of sequence numbers: the queue has refused them, as its limits say
    DELIVER    u32 consumer, u8 flags, return counts, batches
    GOT        u32 request, u8 flags, u64 ready messages, return counts, batch
    REFRESHED  u32 request, u64 ready, u64 leased, u32 consumers, u8 flags, u64 end
    PURGED     u32 request, u64 messages
    FOUND      u32 request, u8 flags, u64 first and u64 end of what can be read, u64 offset of the
               time, u64 bytes
    CANCELLED  u32 consumer
    PLACED     u32 consumer, u64 offset of a stream that it is delivered first
    PREPARED   u64 transaction, u8 outcome, text of an error
    RESOLVED   u64 transaction

    ranges     u64 first and u64 stop of each
    counts     u32 how many, then u64 offset, u32 failures, u32 deliveries of each
"""

from __future__ import annotations

import json
import struct
from collections.abc import Callable
from enum import IntEnum, IntFlag
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias

from leveret.core.settings.discard_reasons import Reason
from leveret.errors import CorruptBatchError, LeveretError
from leveret.ports.records import Batch
from leveret.ports.tables import decode_table, encode_table

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from leveret.ports.definitions import Arguments

__all__ = [
    "BeginConsuming",
    "ConsumerPlaced",
    "ConsumerRefused",
    "DeliverRecords",
    "EndConsuming",
    "ForwardingMessageError",
    "GetRequest",
    "GotRecord",
    "GrantCredit",
    "LogOffsets",
    "LookUpOffsets",
    "PrepareOutcome",
    "PrepareTransaction",
    "PublishRecords",
    "PurgeAnswer",
    "PurgeRequest",
    "QueueFigures",
    "RecordReturns",
    "RecordsCommitted",
    "RecordsFailed",
    "RecordsRefused",
    "RefreshRequest",
    "ResolveTransaction",
    "SettleRecords",
    "SettlementOutcome",
    "StreamOpening",
    "TransactionPrepared",
    "TransactionResolved",
    "pack",
    "parse_from_leader",
    "parse_to_leader",
]

REASONS: Final = (  # by their number on the wire, which stays
    Reason.REJECTED,
    Reason.EXPIRED,
    Reason.MAX_LENGTH,
    Reason.DELIVERY_LIMIT,
    Reason.REQUEUED,
    Reason.DISCONNECTED,
    Reason.TIMED_OUT,
)
BATCHES_MAX: Final = 100_000  # of one delivery


class ForwardingMessageError(LeveretError):
    """Another node sends what is no message of a forwarding stream."""


class Kind(IntEnum):
    """First byte of a message."""

    PUBLISH = 1
    CONSUME = 2
    CANCEL = 3
    CREDIT = 4
    SETTLE = 5
    GET = 6
    REFRESH = 7
    PURGE = 8
    PREPARE = 9
    RESOLVE = 10
    LOOK_UP = 11
    COMMITTED = 65
    FAILED = 66
    DELIVER = 67
    GOT = 68
    REFRESHED = 69
    PURGED = 70
    CANCELLED = 71
    REFUSED = 72
    PLACED = 73
    PREPARED = 74
    RESOLVED = 75
    FOUND = 76


class Flag(IntFlag):
    """Flags of several kinds of message."""

    EXCLUSIVE = 1
    REDELIVERED = 2
    FOUND = 4
    TIMED = 8
    SIZED = 16
    UNREADABLE = 32


class SettlementOutcome(IntEnum):
    """Fate of delivered records."""

    SETTLED = 1
    RETURNED = 2  # not because their consumer failed
    FAILED = 3  # returned, and their consumer failed to process them
    DISCARDED = 4


class PrepareOutcome(IntEnum):
    """Answer to a PrepareTransaction."""

    PREPARED = 1
    NO_ROOM = 2  # the queue's limits do not allow its records
    FAILED = 3


class RecordReturns(NamedTuple):
    """How often a record has been returned, by failures and in all."""

    offset: int
    failures: int
    acquired: int


class StreamOpening(NamedTuple):
    """Payload that a stream is opened with."""

    key: str
    epoch: int
    sequence: int

    def pack(self) -> bytes:
        """Return the payload that opens a stream."""
        return json.dumps(self._asdict()).encode()

    @classmethod
    def parse(cls, payload: memoryview) -> StreamOpening:
        """Return what a stream was opened with. Raises ForwardingMessageError."""
        try:
            told = json.loads(bytes(payload))
            return cls(str(told["key"]), int(told["epoch"]), int(told["sequence"]))
        except (KeyError, TypeError, ValueError, RecursionError) as error:
            raise ForwardingMessageError(f"a stream is opened for no partition: {error}") from error


class PublishRecords(NamedTuple):
    """Records for the queue. `batch.base_offset` is the first one's sequence number."""

    batch: Batch


class BeginConsuming(NamedTuple):
    """A consumer that begins, with credit for so many messages."""

    consumer: int
    exclusive: bool
    priority: int
    credit: int
    arguments: Arguments


class EndConsuming(NamedTuple):
    """A consumer that ends; what it has stays leased until it is settled."""

    consumer: int


class GrantCredit(NamedTuple):
    """More that may be sent to a consumer."""

    consumer: int
    messages: int
    size: int


class SettleRecords(NamedTuple):
    """Fate of records that were delivered."""

    outcome: SettlementOutcome
    cause: Reason
    ranges: Sequence[tuple[int, int]]


class GetRequest(NamedTuple):
    """A request for one message, which stays leased until it is settled."""

    request: int


class RefreshRequest(NamedTuple):
    """A request for the queue's figures once everything published is committed."""

    request: int


class PurgeRequest(NamedTuple):
    """A request to purge the queue."""

    request: int


class LookUpOffsets(NamedTuple):
    """A request for the offsets that can be read, and the first one of a time in ms since 1970.

    `sizes`: and for the bytes that are stored of them.
    """

    request: int
    time_ms: int | None
    sizes: bool


class PrepareTransaction(NamedTuple):
    """A part of a transaction: records to be published, and offsets of delivered ones to settle."""

    transaction: int
    ranges: Sequence[tuple[int, int]]
    batch: Batch | None


class ResolveTransaction(NamedTuple):
    """Outcome of a transaction, to be applied to its part."""

    transaction: int
    committed: bool


class TransactionPrepared(NamedTuple):
    """Answer to a PrepareTransaction, with the text of an error."""

    transaction: int
    outcome: PrepareOutcome
    text: str


class TransactionResolved(NamedTuple):
    """Answer to a ResolveTransaction: what has committed is visible."""

    transaction: int


class RecordsCommitted(NamedTuple):
    """All records below a sequence number are committed."""

    sequence: int


class RecordsFailed(NamedTuple):
    """Records that could not be stored, by sequence number: all who wait for them are nacked."""

    ranges: Sequence[tuple[int, int]]


class RecordsRefused(NamedTuple):
    """Records that the queue has refused, by sequence number: their publishers are nacked."""

    ranges: Sequence[tuple[int, int]]


class DeliverRecords(NamedTuple):
    """Records for a consumer, all of these batches."""

    consumer: int
    redelivered: bool
    counts: Sequence[RecordReturns]
    batches: Sequence[Batch]


class GotRecord(NamedTuple):
    """Answer to a GetRequest: a batch of one record, or None."""

    request: int
    redelivered: bool
    ready: int
    counts: Sequence[RecordReturns]
    batch: Batch | None


class QueueFigures(NamedTuple):
    """Answer to a RefreshRequest. `exclusive`: the queue has an exclusive consumer.

    `end` is the offset of the next record: who reads a stream from now on begins there.
    """

    request: int
    ready: int
    leased: int
    consumers: int
    exclusive: bool
    end: int = 0


class PurgeAnswer(NamedTuple):
    """Answer to a PurgeRequest."""

    request: int
    messages: int


class LogOffsets(NamedTuple):
    """Answer to a LookUpOffsets; None for what was not asked for, or cannot be read now."""

    request: int
    first: int
    end: int
    offset: int | None
    size: int | None
    is_unreadable: bool = False


class ConsumerRefused(NamedTuple):
    """A consumer that the queue has refused."""

    consumer: int


class ConsumerPlaced(NamedTuple):
    """Offset of a stream where a consumer begins: another leader is to know it, too."""

    consumer: int
    offset: int


ToLeader: TypeAlias = (
    PublishRecords
    | BeginConsuming
    | EndConsuming
    | GrantCredit
    | SettleRecords
    | GetRequest
    | RefreshRequest
    | PurgeRequest
    | LookUpOffsets
    | PrepareTransaction
    | ResolveTransaction
)
FromLeader: TypeAlias = (
    RecordsCommitted
    | RecordsFailed
    | RecordsRefused
    | DeliverRecords
    | GotRecord
    | QueueFigures
    | PurgeAnswer
    | LogOffsets
    | ConsumerRefused
    | ConsumerPlaced
    | TransactionPrepared
    | TransactionResolved
)
Parts: TypeAlias = list[bytes | memoryview]

CONSUME = struct.Struct("<BIBqI")
NUMBER = struct.Struct("<BI")
CREDIT = struct.Struct("<BIII")
SETTLE = struct.Struct("<BBB")
COMMITTED = struct.Struct("<BQ")
DELIVER = struct.Struct("<BIB")
GOT = struct.Struct("<BIBQ")
REFRESHED = struct.Struct("<BIQQIBQ")
PURGED = struct.Struct("<BIQ")
LOOK_UP = struct.Struct("<BIBQ")
FOUND = struct.Struct("<BIBQQQQ")
PLACED = struct.Struct("<BIQ")
PREPARE = struct.Struct("<BQI")
RESOLVE = struct.Struct("<BQB")
RESOLVED = struct.Struct("<BQ")
RANGE = struct.Struct("<QQ")
COUNT = struct.Struct("<I")
COUNTS = struct.Struct("<QII")
U32_MAX: Final = (1 << 32) - 1


def pack(message: ToLeader | FromLeader) -> Parts:
    """Return a message as buffers, which must not be changed until they are sent."""
    return _PACKERS[type(message)](message)


def _pack_consume(message: BeginConsuming) -> Parts:
    flags = Flag.EXCLUSIVE * message.exclusive
    front = CONSUME.pack(
        Kind.CONSUME, message.consumer, flags, message.priority, min(message.credit, U32_MAX)
    )
    return [front + encode_table(message.arguments)]  # which tells times from integers


def _pack_settle(message: SettleRecords) -> Parts:
    cause = REASONS.index(message.cause)
    front = SETTLE.pack(Kind.SETTLE, message.outcome, cause)
    return [front + _ranges(message.ranges)]


def _pack_deliver(message: DeliverRecords) -> Parts:
    flags = Flag.REDELIVERED * message.redelivered
    front = DELIVER.pack(Kind.DELIVER, message.consumer, flags) + _counts(message.counts)
    return [front, *(memoryview(batch) for batch in message.batches)]


def _pack_got(message: GotRecord) -> Parts:
    flags = Flag.REDELIVERED * message.redelivered | Flag.FOUND * (message.batch is not None)
    front = GOT.pack(Kind.GOT, message.request, flags, message.ready) + _counts(message.counts)
    return [front] if message.batch is None else [front, memoryview(message.batch)]


def _pack_refreshed(message: QueueFigures) -> Parts:
    flags = Flag.EXCLUSIVE * message.exclusive
    return [REFRESHED.pack(Kind.REFRESHED, *message[:4], flags, message.end)]


def _pack_look_up(message: LookUpOffsets) -> Parts:
    flags = Flag.TIMED * (message.time_ms is not None) | Flag.SIZED * message.sizes
    return [LOOK_UP.pack(Kind.LOOK_UP, message.request, flags, message.time_ms or 0)]


def _pack_found(message: LogOffsets) -> Parts:
    flags = Flag.TIMED * (message.offset is not None) | Flag.SIZED * (message.size is not None)
    flags |= Flag.UNREADABLE * message.is_unreadable
    offset, size = message.offset or 0, message.size or 0
    return [
        FOUND.pack(Kind.FOUND, message.request, flags, message.first, message.end, offset, size)
    ]


def _pack_prepare(message: PrepareTransaction) -> Parts:
    front = PREPARE.pack(Kind.PREPARE, message.transaction, len(message.ranges))
    parts: Parts = [front + _ranges(message.ranges)]
    return parts if message.batch is None else [*parts, memoryview(message.batch)]


def _pack_prepared(message: TransactionPrepared) -> Parts:
    return [RESOLVE.pack(Kind.PREPARED, *message[:2]) + message.text.encode()]


def _ranges(ranges: Iterable[tuple[int, int]]) -> bytes:
    return b"".join(RANGE.pack(first, stop) for first, stop in ranges)


def _counts(counts: Sequence[RecordReturns]) -> bytes:
    return COUNT.pack(len(counts)) + b"".join(COUNTS.pack(*each) for each in counts)


_PACKERS: Final[dict[type, Callable[[Any], Parts]]] = {
    PublishRecords: lambda m: [bytes([Kind.PUBLISH]), memoryview(m.batch)],
    BeginConsuming: _pack_consume,
    EndConsuming: lambda m: [NUMBER.pack(Kind.CANCEL, m.consumer)],
    GrantCredit: lambda m: [CREDIT.pack(Kind.CREDIT, *(min(n, U32_MAX) for n in m))],
    SettleRecords: _pack_settle,
    GetRequest: lambda m: [NUMBER.pack(Kind.GET, m.request)],
    RefreshRequest: lambda m: [NUMBER.pack(Kind.REFRESH, m.request)],
    PurgeRequest: lambda m: [NUMBER.pack(Kind.PURGE, m.request)],
    PrepareTransaction: _pack_prepare,
    ResolveTransaction: lambda m: [RESOLVE.pack(Kind.RESOLVE, *m)],
    TransactionPrepared: _pack_prepared,
    TransactionResolved: lambda m: [RESOLVED.pack(Kind.RESOLVED, *m)],
    RecordsCommitted: lambda m: [COMMITTED.pack(Kind.COMMITTED, m.sequence)],
    RecordsFailed: lambda m: [bytes([Kind.FAILED]) + _ranges(m.ranges)],
    RecordsRefused: lambda m: [bytes([Kind.REFUSED]) + _ranges(m.ranges)],
    DeliverRecords: _pack_deliver,
    GotRecord: _pack_got,
    QueueFigures: _pack_refreshed,
    LookUpOffsets: _pack_look_up,
    LogOffsets: _pack_found,
    PurgeAnswer: lambda m: [PURGED.pack(Kind.PURGED, *m)],
    ConsumerPlaced: lambda m: [PLACED.pack(Kind.PLACED, *m)],
    ConsumerRefused: lambda m: [NUMBER.pack(Kind.CANCELLED, m.consumer)],
}


def parse_to_leader(payload: memoryview) -> ToLeader:
    """Return a message of the client's node. Raises ForwardingMessageError."""
    message = _parse(payload)
    if not isinstance(message, ToLeader):
        raise ForwardingMessageError(f"a leader is sent {type(message).__name__}")
    return message


def parse_from_leader(payload: memoryview) -> FromLeader:
    """Return a message of the leader. Raises ForwardingMessageError."""
    message = _parse(payload)
    if not isinstance(message, FromLeader):
        raise ForwardingMessageError(f"a leader sends {type(message).__name__}")
    return message


def _parse(payload: memoryview) -> ToLeader | FromLeader:
    try:
        return _PARSERS[payload[0]](payload)
    except (
        struct.error,
        IndexError,
        KeyError,
        ValueError,
        TypeError,
        RecursionError,
        CorruptBatchError,
    ) as error:
        raise ForwardingMessageError(f"no message of a forwarding stream: {error!r}") from error


def _parse_consume(payload: memoryview) -> BeginConsuming:
    _, consumer, flags, priority, credit = CONSUME.unpack_from(payload)
    arguments = decode_table(bytes(payload[CONSUME.size :]))
    return BeginConsuming(consumer, bool(flags & Flag.EXCLUSIVE), priority, credit, arguments)


def _parse_settle(payload: memoryview) -> SettleRecords:
    _, outcome, cause = SETTLE.unpack_from(payload)
    ranges = _parse_ranges(payload[SETTLE.size :])
    return SettleRecords(SettlementOutcome(outcome), REASONS[cause], ranges)


def _parse_prepare(payload: memoryview) -> PrepareTransaction:
    _, transaction, count = PREPARE.unpack_from(payload)
    end = PREPARE.size + count * RANGE.size
    if end > len(payload):
        raise ValueError(f"{count} ranges do not fit")
    ranges = _parse_ranges(payload[PREPARE.size : end])
    batch = _parse_batch(payload, end) if end < len(payload) else None
    return PrepareTransaction(transaction, ranges, batch)


def _parse_resolve(payload: memoryview) -> ResolveTransaction:
    _, transaction, committed = RESOLVE.unpack(payload)
    return ResolveTransaction(transaction, bool(committed))


def _parse_prepared(payload: memoryview) -> TransactionPrepared:
    _, transaction, outcome = RESOLVE.unpack_from(payload)
    text = str(payload[RESOLVE.size :], "utf-8", "replace")
    return TransactionPrepared(transaction, PrepareOutcome(outcome), text)


def _parse_ranges(payload: memoryview) -> list[tuple[int, int]]:
    ranges = list(RANGE.iter_unpack(payload))
    if any(first >= stop for first, stop in ranges):
        raise ValueError("a range ends before it begins")
    return ranges


def _parse_counts(payload: memoryview, position: int) -> tuple[list[RecordReturns], int]:
    (count,) = COUNT.unpack_from(payload, position)
    begin = position + COUNT.size
    end = begin + count * COUNTS.size
    if end > len(payload):
        raise ValueError(f"{count} return counts do not fit")
    return [RecordReturns(*each) for each in COUNTS.iter_unpack(payload[begin:end])], end


def _parse_deliver(payload: memoryview) -> DeliverRecords:
    _, consumer, flags = DELIVER.unpack_from(payload)
    counts, position = _parse_counts(payload, DELIVER.size)
    batches = []
    while position < len(payload):
        batches.append(_parse_batch(payload, position))
        position += len(batches[-1])
    if not 0 < len(batches) <= BATCHES_MAX:
        raise ValueError(f"{len(batches)} batches are delivered")
    return DeliverRecords(consumer, bool(flags & Flag.REDELIVERED), counts, batches)


def _parse_got(payload: memoryview) -> GotRecord:
    _, request, flags, ready = GOT.unpack_from(payload)
    counts, position = _parse_counts(payload, GOT.size)
    batch = _parse_batch(payload, position) if flags & Flag.FOUND else None
    return GotRecord(request, bool(flags & Flag.REDELIVERED), ready, counts, batch)


def _parse_refreshed(payload: memoryview) -> QueueFigures:
    _, request, ready, leased, consumers, flags, end = REFRESHED.unpack(payload)
    return QueueFigures(request, ready, leased, consumers, bool(flags & Flag.EXCLUSIVE), end)


def _parse_look_up(payload: memoryview) -> LookUpOffsets:
    _, request, flags, time_ms = LOOK_UP.unpack(payload)
    is_timed = bool(flags & Flag.TIMED)
    return LookUpOffsets(request, time_ms if is_timed else None, bool(flags & Flag.SIZED))


def _parse_found(payload: memoryview) -> LogOffsets:
    _, request, flags, first, end, offset, size = FOUND.unpack(payload)
    return LogOffsets(
        request,
        first,
        end,
        offset if flags & Flag.TIMED else None,
        size if flags & Flag.SIZED else None,
        bool(flags & Flag.UNREADABLE),
    )


def _parse_batch(payload: memoryview, position: int) -> Batch:
    batch = Batch.parse(payload, position)
    if batch.is_control or not batch.count:
        raise ValueError("a batch has no records")
    return batch


_PARSERS: Final[dict[int, Callable[[memoryview], ToLeader | FromLeader]]] = {
    Kind.PUBLISH: lambda p: PublishRecords(_parse_batch(p, 1)),
    Kind.CONSUME: _parse_consume,
    Kind.CANCEL: lambda p: EndConsuming(NUMBER.unpack(p)[1]),
    Kind.CREDIT: lambda p: GrantCredit(*CREDIT.unpack(p)[1:]),
    Kind.SETTLE: _parse_settle,
    Kind.GET: lambda p: GetRequest(NUMBER.unpack(p)[1]),
    Kind.REFRESH: lambda p: RefreshRequest(NUMBER.unpack(p)[1]),
    Kind.PURGE: lambda p: PurgeRequest(NUMBER.unpack(p)[1]),
    Kind.PREPARE: _parse_prepare,
    Kind.RESOLVE: _parse_resolve,
    Kind.LOOK_UP: _parse_look_up,
    Kind.FOUND: _parse_found,
    Kind.PREPARED: _parse_prepared,
    Kind.RESOLVED: lambda p: TransactionResolved(RESOLVED.unpack(p)[1]),
    Kind.COMMITTED: lambda p: RecordsCommitted(COMMITTED.unpack(p)[1]),
    Kind.FAILED: lambda p: RecordsFailed(_parse_ranges(p[1:])),
    Kind.REFUSED: lambda p: RecordsRefused(_parse_ranges(p[1:])),
    Kind.DELIVER: _parse_deliver,
    Kind.GOT: _parse_got,
    Kind.REFRESHED: _parse_refreshed,
    Kind.PURGED: lambda p: PurgeAnswer(*PURGED.unpack(p)[1:]),
    Kind.CANCELLED: lambda p: ConsumerRefused(NUMBER.unpack(p)[1]),
    Kind.PLACED: lambda p: ConsumerPlaced(*PLACED.unpack(p)[1:]),
}
