"""Messages of replication as bytes on a link. All integers are little-endian.

    frame           u32 length of what follows | u8 kind | u8 version | u16 shard | u32 epoch | ...

    1 ATTACH        u64 incarnation | u32 logs | log*
    2 ATTACHED      u32 cuts | (name, place)*
    3 REFUSED
    4 DETACHED
    5 OPERATIONS    u64 number of the frame | operation*
    6 ACKNOWLEDGE   u64 number of the frame

    log             name | u32 files | (u64 base, u32 revision)* | u32 epochs | (u32 epoch, place)*
                    | place of the end | u64 offset | place of the last batch | u32 its checksum
    place           u64 base | u32 revision | u64 position
    name            u16 length | bytes: VHOST/TOPIC~~INCARNATION/PARTITION (storage.names.log_key)

    operation       u8 kind | u32 log, a number
    1 NAME          name: of the log that has the number from here on
    2 APPEND        place | u32 length | batches
    3 COPY          place | u8 1 if it is the last of the file | u32 length | batches
    4 REMOVE        u64 base | u32 revision
    5 DROP

Numbers of logs hold for a link, until the next ATTACHED. A change of the layout is a new version;
which one a link speaks is agreed upon when it is opened.
"""

from __future__ import annotations

import re
from struct import Struct
from typing import TYPE_CHECKING

from leveret.errors import LeveretError
from leveret.ports.replication import BATCH_BYTES_MAX, EpochEnd, LogFiles, LogPlace
from leveret.replication.messages import (
    Acknowledge,
    Append,
    Attach,
    Attached,
    Copy,
    Detached,
    Drop,
    Operations,
    Refused,
    Remove,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from leveret.replication.messages import Message, Operation

__all__ = ["FRAME_BYTES_MAX", "LENGTH", "LinkDecoder", "LinkEncoder", "MalformedMessageError"]

VERSION = 1
# A batch is sent whole, behind what fills a frame without it, names of logs included. ATTACH names
# all logs of a shard: a million of them, with a few files each.
FRAME_BYTES_MAX = BATCH_BYTES_MAX + (32 << 20)
NAMES_MAX = 4_000_000  # of logs on one link, between two ATTACHED

LENGTH = Struct("<I")
HEAD = Struct("<BBHI")
PLACE = Struct("<QIQ")
FILE = Struct("<QI")
EPOCH = Struct("<I")
COUNT = Struct("<I")
NUMBER = Struct("<Q")
NAME_LENGTH = Struct("<H")
OPERATION = Struct("<BI")
CHECKSUM = Struct("<I")

ATTACH, ATTACHED, REFUSED, DETACHED, OPERATIONS, ACKNOWLEDGE = range(1, 7)
KINDS = {
    Attach: ATTACH,
    Attached: ATTACHED,
    Refused: REFUSED,
    Detached: DETACHED,
    Operations: OPERATIONS,
    Acknowledge: ACKNOWLEDGE,
}
NAME, APPEND, COPY, REMOVE, DROP = range(1, 6)

# No part of a name is empty, hidden or a way up: it is a path below the directory of all logs.
LOG_NAME = re.compile(r"(?:(?!\.)[A-Za-z0-9_.%~-]+/){2}\d{1,9}")


class MalformedMessageError(LeveretError):
    """Bytes of a peer are no message: its link is closed."""


class LinkEncoder:
    """Encodes what is sent over a link."""

    def __init__(self, shard: int) -> None:
        self._shard = shard
        self._numbers: dict[str, int] = {}
        self._next = 0

    def encode(self, message: Message) -> list[bytes | bytearray | memoryview]:
        """Return a frame in pieces; batches are not copied."""
        pieces: list[bytes | bytearray | memoryview] = [
            HEAD.pack(KINDS[type(message)], VERSION, self._shard, message.epoch)
        ]
        if isinstance(message, Attach):
            logs = [_encode_log(log) for log in message.logs]
            pieces += [NUMBER.pack(message.incarnation), COUNT.pack(len(logs)), *logs]
        elif isinstance(message, Attached):
            self._numbers.clear()
            self._next = 0
            pieces.append(COUNT.pack(len(message.cuts)))
            pieces += [_encode_name(name) + PLACE.pack(*place) for name, place in message.cuts]
        elif isinstance(message, Operations):
            pieces.append(NUMBER.pack(message.frame))
            for operation in message.operations:
                pieces += self._encode_operation(operation)
        elif isinstance(message, Acknowledge):
            pieces.append(NUMBER.pack(message.frame))
        return [LENGTH.pack(sum(map(len, pieces))), *pieces]

    def _encode_operation(self, operation: Operation) -> list[bytes | bytearray | memoryview]:
        log = operation.log
        pieces: list[bytes | bytearray | memoryview] = []
        number = self._numbers.get(log)
        if number is None:
            number = self._numbers[log] = self._next
            self._next += 1
            pieces.append(OPERATION.pack(NAME, number) + _encode_name(log))
        if isinstance(operation, Append):
            head = OPERATION.pack(APPEND, number) + PLACE.pack(*operation.place)
            pieces += [head + LENGTH.pack(len(operation.data)), operation.data]
        elif isinstance(operation, Copy):
            head = OPERATION.pack(COPY, number) + PLACE.pack(*operation.place)
            head += bytes([operation.is_last]) + LENGTH.pack(len(operation.data))
            pieces += [head, operation.data]
        elif isinstance(operation, Remove):
            head = OPERATION.pack(REMOVE, number)
            pieces.append(head + FILE.pack(operation.base, operation.revision))
        else:
            pieces.append(OPERATION.pack(DROP, number))
            del self._numbers[log]  # it never comes back
        return pieces


def _encode_name(name: str) -> bytes:
    raw = name.encode("ascii")
    return NAME_LENGTH.pack(len(raw)) + raw


def _encode_log(log: LogFiles) -> bytes:
    return b"".join(
        (
            _encode_name(log.log),
            COUNT.pack(len(log.files)),
            *(FILE.pack(*file) for file in log.files),
            COUNT.pack(len(log.epochs)),
            *(EPOCH.pack(end.epoch) + PLACE.pack(*end.place) for end in log.epochs),
            PLACE.pack(*log.place),
            NUMBER.pack(log.offset),
            PLACE.pack(*log.last),
            CHECKSUM.pack(log.checksum),
        )
    )


class LinkDecoder:
    """Decodes what comes over a link, in which a peer may have put anything."""

    def __init__(self, shard: int) -> None:
        self._shard = shard
        self._names: dict[int, str] = {}

    def decode(self, frame: bytes | bytearray | memoryview) -> Message:
        """Return the message of a frame, whose length was taken off.

        Batches and logs in it are views of the frame. Raises MalformedMessageError.
        """
        fields = FrameFields(memoryview(frame))
        kind, version, shard, epoch = fields.take(HEAD)
        if (version, shard) != (VERSION, self._shard):
            raise MalformedMessageError(f"a frame of version {version} for shard {shard}")
        message = self._message(kind, fields, epoch)
        if fields.left:
            raise MalformedMessageError(f"{fields.left} bytes behind a frame of kind {kind}")
        return message

    def _message(self, kind: int, fields: FrameFields, epoch: int) -> Message:
        if kind == ATTACH:
            return Attach(epoch, fields.number(), EncodedLogs(fields.bytes(fields.left)))
        if kind == ATTACHED:
            return self._attached(fields, epoch)
        if kind == REFUSED:
            return Refused(epoch)
        if kind == DETACHED:
            return Detached(epoch)
        if kind == OPERATIONS:
            return self._operations(fields, epoch)
        if kind == ACKNOWLEDGE:
            return Acknowledge(epoch, fields.number())
        raise MalformedMessageError(f"a frame of the unknown kind {kind}")

    def _attached(self, fields: FrameFields, epoch: int) -> Attached:
        self._names.clear()
        count = fields.count(CUT_BYTES_MIN)
        return Attached(epoch, tuple((fields.name(), fields.place()) for _ in range(count)))

    def _operations(self, fields: FrameFields, epoch: int) -> Operations:
        number, operations = fields.number(), []
        while fields.left:
            operation = self._operation(fields)
            if operation is not None:
                operations.append(operation)
        return Operations(epoch, number, tuple(operations))

    def _operation(self, fields: FrameFields) -> Operation | None:
        kind, number = fields.take(OPERATION)
        if kind == NAME:
            if number in self._names or len(self._names) >= NAMES_MAX:
                raise MalformedMessageError(f"log {number} is named again, or one too many")
            self._names[number] = fields.name()
            return None
        log = self._names.get(number)
        if log is None:
            raise MalformedMessageError(f"log {number} has no name")
        if kind == APPEND:
            return Append(log, fields.place(), fields.data())
        if kind == COPY:
            place, (is_last,) = fields.place(), fields.bytes(1)
            return Copy(log, place, fields.data(), is_last == 1)
        if kind == REMOVE:
            return Remove(log, *fields.take(FILE))
        if kind == DROP:
            del self._names[number]
            return Drop(log)
        raise MalformedMessageError(f"an operation of the unknown kind {kind}")


class FrameFields:
    """Reads fields of a frame, one after another. Raises MalformedMessageError behind its end."""

    def __init__(self, frame: memoryview) -> None:
        self._frame = frame
        self._at = 0

    @property
    def left(self) -> int:
        """Number of bytes that are not read yet."""
        return len(self._frame) - self._at

    def bytes(self, size: int) -> memoryview:
        """Return the next `size` bytes."""
        if size > self.left:
            raise MalformedMessageError(f"a frame ends {size - self.left} bytes too early")
        self._at += size
        return self._frame[self._at - size : self._at]

    def take(self, struct: Struct) -> tuple[int, ...]:
        """Return the integers of a struct."""
        return struct.unpack(self.bytes(struct.size))

    def number(self) -> int:
        """Return a u64."""
        return self.take(NUMBER)[0]

    def count(self, bytes_min: int) -> int:
        """Return a u32, the number of things of which each takes `bytes_min` or more."""
        count = self.take(COUNT)[0]
        if count * bytes_min > self.left:
            raise MalformedMessageError(f"{count} things do not fit into a frame")
        return count

    def place(self) -> LogPlace:
        """Return a place."""
        return LogPlace(*self.take(PLACE))

    def data(self) -> memoryview:
        """Return the bytes of batches."""
        return self.bytes(self.take(LENGTH)[0])

    def name(self) -> str:
        """Return the name of a log."""
        raw = bytes(self.bytes(self.take(NAME_LENGTH)[0]))
        name = raw.decode("latin-1")
        if LOG_NAME.fullmatch(name) is None:
            raise MalformedMessageError("no name of a log")
        return name


class EncodedLogs:
    """Logs at the end of a frame, decoded whenever they are iterated over.

    There may be so many that it takes seconds, which no event loop can wait for. Numbers of logs
    have no part in it, so that it is all the same when it is done, and in which thread.
    """

    def __init__(self, data: memoryview) -> None:
        self._data = data

    def __iter__(self) -> Iterator[LogFiles]:
        """Decode one log after another. Raises MalformedMessageError."""
        fields, names = FrameFields(self._data), set()
        for _ in range(fields.count(LOG_BYTES_MIN)):
            log = _decode_log(fields)
            if log.log in names:
                raise MalformedMessageError("a log is named twice")
            names.add(log.log)
            yield log
        if fields.left:
            raise MalformedMessageError(f"{fields.left} bytes behind the last log")


def _decode_log(fields: FrameFields) -> LogFiles:
    name = fields.name()
    files = [fields.take(FILE) for _ in range(fields.count(FILE.size))]
    epochs = [
        EpochEnd(fields.take(EPOCH)[0], fields.place())
        for _ in range(fields.count(EPOCH.size + PLACE.size))
    ]
    place, offset, last = fields.place(), fields.number(), fields.place()
    pairs = tuple((base, revision) for base, revision in files)
    return LogFiles(name, pairs, tuple(epochs), place, offset, last, fields.take(CHECKSUM)[0])


CUT_BYTES_MIN = NAME_LENGTH.size + PLACE.size
LOG_BYTES_MIN = NAME_LENGTH.size + 2 * COUNT.size + 2 * PLACE.size + NUMBER.size + CHECKSUM.size
