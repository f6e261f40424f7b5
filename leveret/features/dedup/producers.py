"""Positions of the numbering publishers of a virtual host: the topic `leveret.producers`.

A record is written atomically with the messages that it covers (see leveret.core.logs.atomic), so
that after a crash both are there or neither is. It holds the positions of all publishers that a
write has moved, one after the other:

    u16 size of the id | id | u64 epoch | u64 sequence of the last message | u64 time of it
    u16 size of the id, and OWNED | id | u16 size of the user | user | u64 … as above

Ids are per user: equal ids of two users are independent. The first form is an older release's,
which had no users; the first user who numbers with that id takes it over.

A record is settled when each of its publishers has a later one. The oldest positions are rewritten
from time to time, so that idle publishers do not keep old segments.
"""

from __future__ import annotations

import struct
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from leveret.core.logs.log_restore import LogRestore
from leveret.core.logs.log_scan import LogScan
from leveret.core.logs.log_writer import LogWriter
from leveret.errors import StorageError
from leveret.features.dedup.sequences import Position

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from leveret.core.environment import Environment
    from leveret.ports import TopicLog
    from leveret.ports.records import Batch, BatchBuilder

__all__ = ["PRODUCERS_TOPIC", "Producer", "ProducerState", "Producers"]

PRODUCERS_TOPIC = "leveret.producers"
SIZE = struct.Struct("<H")
NUMBERS = struct.Struct("<QQQ")
OWNED = 1 << 15  # an id has 255 bytes at most
# Positions this many records behind the end are rewritten, a few with each write.
STALE_RECORDS = 10_000
RENEWED_AT_ONCE = 8


class Producer(NamedTuple):
    """Numbering publisher; `user` is empty in records of an older release."""

    id: str
    user: str = ""


class ProducerState(NamedTuple):
    """Position of a publisher, and the record that holds it."""

    position: Position
    time_ms: int
    offset: int


class Producers(LogWriter):
    """Numbering publishers of one virtual host. `held` until all of them are restored."""

    def __init__(self, log: TopicLog, environment: Environment) -> None:
        super().__init__(log, environment.turn, environment.report)
        self._environment = environment
        self.duplicates = 0  # duplicates dropped since the start
        self.held = log.first < log.end
        self._known: dict[Producer, ProducerState] = {}  # in order of their records
        self._live: dict[int, int] = {}  # by record: number of publishers whose latest it is
        self._offset = 0  # of the record written last

    def __repr__(self) -> str:
        return f"Producers({self.log!r})"

    def __len__(self) -> int:
        return len(self._known)

    def get(self, producer: Producer) -> Position | None:
        """Return the position of a publisher, or of its id in an older release; None if unknown."""
        known = self._known.get(producer) or self._known.get(Producer(producer.id))
        return None if known is None else known.position

    def named(self, id_: str) -> list[Producer]:
        """Return the publishers with this id, one for each user."""
        return [producer for producer in self._known if producer.id == id_]

    def items(self) -> list[tuple[Producer, ProducerState]]:
        """Return all publishers with their positions."""
        return list(self._known.items())

    # -- updating

    def record(self, moved: Mapping[Producer, Position], now_ms: int) -> bytes:
        """Return a record with these positions, and a few of the oldest."""
        stale = {
            name: known
            for name, known in self._oldest(RENEWED_AT_ONCE)
            if known.offset + STALE_RECORDS < self.log.end and name not in moved
        }
        return _packed(
            [
                *((name, known.position, known.time_ms) for name, known in stale.items()),
                *((name, position, now_ms) for name, position in moved.items()),
            ]
        )

    def _oldest(self, count: int) -> Iterable[tuple[Producer, ProducerState]]:
        return [item for item, _ in zip(self._known.items(), range(count), strict=False)]

    def take_in(self, records: BatchBuilder) -> None:  # noqa: ARG002  # it is one record
        """Note the offset of the record to be appended."""
        self._offset = self.log.end

    def apply(self, record: bytes) -> None:
        """Apply the record written last, which was committed."""
        self._apply(_unpacked(record), self._offset)

    def _apply(self, rows: Iterable[tuple[Producer, Position, int]], offset: int) -> None:
        for producer, position, time_ms in rows:
            self._forget(producer)
            self._forget(Producer(producer.id))  # which it has taken over
            self._known[producer] = ProducerState(position, time_ms, offset)
            self._live[offset] = self._live.get(offset, 0) + 1
        if offset not in self._live:
            self.settle([(offset, offset + 1)])

    def _forget(self, producer: Producer) -> bool:
        known = self._known.pop(producer, None)
        if known is None:
            return False
        self._live[known.offset] -= 1
        if not self._live[known.offset]:
            del self._live[known.offset]
            self.settle([(known.offset, known.offset + 1)])
        return True

    def forget_idle(self, before_ms: int) -> None:
        """Remove publishers whose last message came before `before_ms`.

        A restart may restore some of them, which are removed again.
        """
        if self.held:
            return
        for name, known in list(self._known.items()):
            if known.time_ms < before_ms:
                self._forget(name)

    def beside(self, producer: Producer) -> dict[Producer, Position]:
        """Return positions sharing a publisher's record, to be rewritten before it is removed."""
        known = self._known.get(producer)
        if known is None:
            return {}
        return {
            name: other.position
            for name, other in self._known.items()
            if other.offset == known.offset and name != producer
        }

    def forget(self, producer: Producer) -> None:
        """Remove a publisher; its record has no other positions any more."""
        self._forget(producer)

    def close(self) -> None:
        """Stop: the virtual host was deleted."""
        self._close_publishing()

    # -- after a start

    def restore(self) -> None:
        """Restore the positions that an earlier run has left."""
        scan = LogScan(self.log, partial(self._report, self), self.lose)
        LogRestore(self, self._environment, scan, self._index_batch, self._release).start()

    def _index_batch(self, batch: Batch) -> None:
        for offset, _, _, _, _, _, body in batch.records():
            if offset not in self.log.settled:
                self._apply(self._readable(body, offset), offset)

    def _readable(self, record: bytes, offset: int) -> Iterable[tuple[Producer, Position, int]]:
        """Yield the rows of a record up to the first that is damaged, which is reported."""
        try:
            yield from _unpacked(record)
        except ValueError as error:
            self._report(self, StorageError(f"record {offset} of {self!r}: {error}"))

    def _show_committed(self) -> None:
        """Do nothing: the write notifies its waiters."""


def _packed(rows: Iterable[tuple[Producer, Position, int]]) -> bytes:
    parts = []
    for producer, position, time_ms in rows:
        id_, user = (text.encode(errors="surrogateescape") for text in producer)
        parts += [SIZE.pack(len(id_) | (OWNED if user else 0)), id_]
        if user:
            parts += [SIZE.pack(len(user)), user]
        parts.append(NUMBERS.pack(*position, time_ms))
    return b"".join(parts)


def _unpacked(record: bytes) -> Iterable[tuple[Producer, Position, int]]:
    """Yield the rows that `_packed` was given. Raises ValueError."""
    at = 0
    try:
        while at < len(record):
            (size,) = SIZE.unpack_from(record, at)
            id_, at = _text(record, at + SIZE.size, size & ~OWNED)
            user = ""
            if size & OWNED:
                (size,) = SIZE.unpack_from(record, at)
                user, at = _text(record, at + SIZE.size, size)
            epoch, sequence, time_ms = NUMBERS.unpack_from(record, at)
            at += NUMBERS.size
            yield Producer(id_, user), Position(epoch, sequence), time_ms
    except struct.error:
        raise ValueError("a publisher's position is cut off") from None


def _text(record: bytes, at: int, size: int) -> tuple[str, int]:
    """Return a text of `size` bytes, and the position behind it."""
    return record[at : at + size].decode(errors="surrogateescape"), at + size
