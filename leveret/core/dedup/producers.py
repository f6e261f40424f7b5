"""How far each numbering publisher of a virtual host has come: the topic `leveret.producers`.

A record is written together with the messages that it tells of (see leveret.core.logs.atomic), so
that either both are there after a crash or neither is. It holds the positions of all publishers
that a write has moved, one after the other:

    u16 size of the id | id | u64 epoch | u64 sequence of the last message | u64 time of it
    u16 size of the id, and OWNED | id | u16 size of the user | user | u64 … as above

An id is one of its user's: those of two users have nothing to do with each other. The first form is
an older release's, which knew no users; whoever numbers under that id first goes on with it.

A record is settled when each of its publishers stands in a later one. The oldest positions are
written again now and then, so that idle publishers keep no old segments.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, NamedTuple

from leveret.core.logs.log_writer import LogWriter
from leveret.errors import StorageError
from leveret.features.sequences import Position

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from leveret.core.turn import Turn
    from leveret.ports import TopicLog
    from leveret.ports.records import BatchBuilder

__all__ = ["PRODUCERS_TOPIC", "Known", "Producer", "Producers"]

PRODUCERS_TOPIC = "leveret.producers"
SIZE = struct.Struct("<H")
NUMBERS = struct.Struct("<QQQ")
OWNED = 1 << 15  # an id has 255 bytes at most
# Positions that stand so many records behind the end are written again, a few with each write.
STALE_RECORDS = 10_000
RENEWED_AT_ONCE = 8
READ_BYTES = 1 << 20


class Producer(NamedTuple):
    """One numbering publisher; `user` is empty where an older release has noted it."""

    id: str
    user: str = ""


class Known(NamedTuple):
    """One publisher's last message, and the record that says so."""

    position: Position
    time_ms: int
    offset: int


class Producers(LogWriter):
    """The numbering publishers of one virtual host. `held` until all of them are known again."""

    def __init__(
        self, log: TopicLog, turn: Turn, report: Callable[[object, Exception], None]
    ) -> None:
        super().__init__(log, turn, report)
        self.duplicates = 0  # messages that were not stored again, since the start
        self.held = log.first < log.end
        self._known: dict[Producer, Known] = {}  # in the order of their records
        self._live: dict[int, int] = {}  # of records: how many publishers have none that is newer
        self._offset = 0  # of the record that was written last

    def __repr__(self) -> str:
        return f"Producers({self.log!r})"

    def __len__(self) -> int:
        return len(self._known)

    def get(self, producer: Producer) -> Position | None:
        """How far a publisher has come; or who had its id in an older release."""
        known = self._known.get(producer) or self._known.get(Producer(producer.id))
        return None if known is None else known.position

    def named(self, id_: str) -> list[Producer]:
        """The publishers of this id, one for each user."""
        return [producer for producer in self._known if producer.id == id_]

    def items(self) -> list[tuple[Producer, Known]]:
        """All of them."""
        return list(self._known.items())

    # -- moving

    def record(self, moved: Mapping[Producer, Position], now_ms: int) -> bytes:
        """The record that says how far these have come, and repeats a few of the oldest."""
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

    def _oldest(self, count: int) -> Iterable[tuple[Producer, Known]]:
        return [item for item, _ in zip(self._known.items(), range(count), strict=False)]

    def take_in(self, records: BatchBuilder) -> None:  # noqa: ARG002  # it is one record
        """See LogWriter."""
        self._offset = self.log.end

    def learn(self, record: bytes) -> None:
        """The record that was written last has taken effect."""
        self._learn(record, self._offset)

    def _learn(self, record: bytes, offset: int) -> None:
        for producer, position, time_ms in _unpacked(record):
            self._forget(producer)
            self._forget(Producer(producer.id))  # whose place it has taken
            self._known[producer] = Known(position, time_ms, offset)
            self._live[offset] = self._live.get(offset, 0) + 1
        if offset not in self._live:
            self.log.settle([(offset, offset + 1)])

    def _forget(self, producer: Producer) -> bool:
        known = self._known.pop(producer, None)
        if known is None:
            return False
        self._live[known.offset] -= 1
        if not self._live[known.offset]:
            del self._live[known.offset]
            self.log.settle([(known.offset, known.offset + 1)])
        return True

    def forget_idle(self, before_ms: int) -> None:
        """Forget the publishers whose last message came before then.

        A restart may bring some of them back, which are forgotten again.
        """
        if self.held:
            return
        for name, known in list(self._known.items()):
            if known.time_ms < before_ms:
                self._forget(name)

    def beside(self, producer: Producer) -> dict[Producer, Position]:
        """Who shares the record of a publisher, which must be written anew to forget that one."""
        known = self._known.get(producer)
        if known is None:
            return {}
        return {
            name: other.position
            for name, other in self._known.items()
            if other.offset == known.offset and name != producer
        }

    def forget(self, producer: Producer) -> None:
        """A publisher may begin anew; its record tells of nobody else any more."""
        self._forget(producer)

    def close(self) -> None:
        """The virtual host is deleted."""
        self._let_publishers_go()

    # -- after a start

    async def restore(self) -> None:
        """Learn what an earlier run has left."""
        try:
            for first, stop in self.log.settled.gaps(0, self.log.end):
                await self._read(first, stop)
        except (StorageError, ValueError) as error:
            self._report(self, error)
        self._release()

    async def _read(self, first: int, stop: int) -> None:
        while first < stop:
            batches = await self.log.fetch(first, READ_BYTES)
            for batch in batches:
                for offset, _, _, _, _, _, body in batch.records():
                    if first <= offset < stop:
                        self._learn(body, offset)
            first = batches[-1].stop_offset

    def _show_committed(self) -> None:
        """Whoever has written is told by the write."""


def _packed(rows: Iterable[tuple[Producer, Position, int]]) -> bytes:
    pieces = []
    for producer, position, time_ms in rows:
        id_, user = (text.encode(errors="surrogateescape") for text in producer)
        pieces += [SIZE.pack(len(id_) | (OWNED if user else 0)), id_]
        if user:
            pieces += [SIZE.pack(len(user)), user]
        pieces.append(NUMBERS.pack(*position, time_ms))
    return b"".join(pieces)


def _unpacked(record: bytes) -> Iterable[tuple[Producer, Position, int]]:
    """What `_packed` was given. Raises ValueError."""
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
    """A text of so many bytes, and what is behind it."""
    return record[at : at + size].decode(errors="surrogateescape"), at + size
