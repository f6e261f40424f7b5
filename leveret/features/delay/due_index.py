"""Durable index of a delayed-message store: due times of its records, in the state store.

It extends the timing wheel to disk. Records are kept in buckets by due time, larger for later
times: 3 days, 5 hours, 17 minutes, 65 seconds, 4 seconds. As its time approaches, a bucket is split
into smaller ones, and the smallest are loaded into the wheel. A bucket consists of a few packed
chunks, so that thousands of records cost one write.

    b"due/" + store (16 bytes) + 0       u8 version, u64 offset up to which the index is complete
    b"due/" + store + 1 + place          a chunk: a packed DueList
    place: u64 start of the bucket, milliseconds since 1970; u8 bits: it is 2 ** bits long;
           u64 number of the chunk, unique in its store; u32 count of its records; all big-endian

The log is the source of truth. The index is written behind, every second, together with the offset
up to which it is complete: records added later are found by reading the log from there. An entry is
omitted or removed when the settlement of its record is durable: before each write, the log makes
its settlements safe. So every unsettled record is in the index or behind that offset, and a
superfluous entry does no harm, since its record is checked when it is read.
"""

from __future__ import annotations

import struct
from hashlib import blake2b
from typing import TYPE_CHECKING, TypeVar

from leveret.errors import StorageError
from leveret.features.delay.due_list import BITS_MIN, DueList
from leveret.ports.ranges import RangeSet

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sized

    from leveret.features.delay.due_list import DuePage
    from leveret.ports import SharedLog, StateStore

__all__ = ["DueIndex", "index_problem", "store_identity"]

Item = TypeVar("Item")

PREFIX = b"due/"
STORE_BYTES = 16
ABOUT, CHUNK, BEHIND = b"\0", b"\1", b"\2"
ABOUT_VALUE = struct.Struct(">BQ")
VERSION = 1
PLACE = struct.Struct(">QBQI")

CHUNK_COUNT_MAX = 4096  # records per chunk: 64 KiB
SMALL_COUNT_MAX = 128  # last chunks up to this size are merged with new records: a page of LMDB
CHUNKS_AT_ONCE_MAX = 64  # split or loaded in one go: a quarter of a million records
NEAR_MS = 30_000  # the wheel holds what is due within this time …
NEAR_COUNT_MAX = 250_000  # … unless it holds more timers than this: 12 MB
NEAR_MS_MIN = 8_000  # but always what is due within this time
INTERVAL_MS = 1000  # between writes, and so of the log to be read after a crash
RECHECK_MS = 10_000  # interval of checks of a past bucket with leased records
PROGRESS_OFFSETS = 50_000  # progress without other changes is written after so many offsets
BACK_MS = 600_000  # if the clock is set back by more, buckets are loaded again


def store_identity(vhost: str, topic: str, incarnation: str) -> bytes:
    """Return the name of a store in the state store, STORE_BYTES long."""
    name = f"{vhost}\0{topic}\0{incarnation}"
    return blake2b(name.encode(), digest_size=STORE_BYTES).digest()


class DueBucket:
    """Bucket of the index.

    `loaded_number` is the last chunk in the wheel while it is being loaded.
    """

    __slots__ = ("bits", "check_ms", "chunks", "loaded", "loaded_number", "start")

    def __init__(self, start: int, bits: int) -> None:
        self.start = start
        self.bits = bits
        self.chunks: dict[int, int] = {}  # record count by chunk number
        self.loaded = False
        self.loaded_number = -1
        self.check_ms = 0  # time before which checking for settlement is not worthwhile

    @property
    def stop(self) -> int:
        """End of the bucket's time range."""
        return self.start + (1 << self.bits)


class IndexUpdate:
    """Planned changes of the store, and of the buckets once they are written."""

    def __init__(self) -> None:
        self.changes: list[tuple[bytes, bytes | None]] = []
        self.added: list[tuple[int, int, int, int]] = []  # start, bits, number, count
        self.removed: set[tuple[DueBucket, int]] = set()


class DueIndex:
    """Index of one store; it calls `round` from one coroutine, one at a time.

    `admit(dues)` gets records that are due soon, `wheel` has a timer for each of those of all
    stores; `store` is the store's identity, 16 bytes.
    """

    def __init__(
        self,
        state: StateStore,
        store: bytes,
        log: SharedLog,
        wheel: Sized,
        admit: Callable[[DueList], None],
    ) -> None:
        self._state = state
        self._prefix = PREFIX + store
        self._log = log
        self._wheel = wheel
        self._admit = admit
        self._buckets: dict[tuple[int, int], DueBucket] = {}
        self._number = 0
        self._unwritten = DueList()
        self._in_flight = DueList()  # being written
        self._frontier_ms = 0  # the wheel holds everything due earlier
        self._complete = 0  # as written in the state store
        self.hurried = False  # whether the next round is due at once
        self.closed = False

    # -- opening

    def open(self) -> int:
        """Read the list of buckets. Returns the offset up to which the index is complete.

        An index beyond the log's end belongs to another log, or the log has lost its end: it is
        discarded, and everything is read from the log.
        """
        value = self._state.get(self._prefix + ABOUT)
        keys = self._state.keys(self._prefix + CHUNK, self._prefix + BEHIND)
        complete = 0
        if value is not None and len(value) == ABOUT_VALUE.size and value[0] == VERSION:
            complete = ABOUT_VALUE.unpack(value)[1]
        if (value is None and keys) or complete > self._log.committed:
            self._state.write([(key, None) for key in (self._prefix + ABOUT, *keys)], durable=False)
            return 0
        self._complete = complete
        for key in keys:
            start, bits, number, count = PLACE.unpack(key[len(self._prefix) + 1 :])
            self._bucket(start, bits).chunks[number] = count
            self._number = max(self._number, number)
        return complete

    def _bucket(self, start: int, bits: int) -> DueBucket:
        bucket = self._buckets.get((start, bits))
        if bucket is None:
            bucket = self._buckets[start, bits] = DueBucket(start, bits)
            bucket.loaded = bucket.stop <= self._frontier_ms
        return bucket

    def _key(self, start: int, bits: int, number: int, count: int) -> bytes:
        return self._prefix + CHUNK + PLACE.pack(start, bits, number, count)

    # -- waiting records

    def add(self, dues: DueList) -> None:
        """Add committed records."""
        self._unwritten.extend(dues)
        self._admit_near(dues, 0)

    def _admit_near(self, dues: DueList, from_ms: int) -> None:
        """Pass records due from `from_ms` up to the frontier to the wheel."""
        near = dues.between(from_ms, self._frontier_ms)
        if len(near):
            self._admit(near)

    def look(
        self, page: DuePage, after_ms: int, before_ms: int | None, settled: RangeSet, gone: RangeSet
    ) -> None:
        """Offer a page all records that may belong to it."""
        page.look(self._unwritten, settled, gone)
        page.look(self._in_flight, settled, gone)
        for bucket in sorted(self._buckets.values(), key=_by_start):
            full_ms = page.full_until_ms
            if full_ms is not None and bucket.start > full_ms:
                return
            if bucket.stop <= after_ms or (before_ms is not None and bucket.start >= before_ms):
                continue
            for number, count in bucket.chunks.items():
                value = self._state.get(self._key(bucket.start, bucket.bits, number, count))
                if value is not None:
                    dues = DueList()
                    dues.unpack(value)
                    page.look(dues, settled, gone)

    # -- one round

    def wakes_ms(self, now_ms: int) -> int | None:
        """Return the time of the next round that has work; None: when records are added."""
        wanted = [now_ms + INTERVAL_MS] * bool(len(self._unwritten))
        for bucket in self._buckets.values():
            if bucket.loaded:
                wanted.append(max(bucket.stop, bucket.check_ms) + INTERVAL_MS)
            elif bucket.bits > BITS_MIN:
                wanted.append(bucket.start - (1 << bucket.bits))
            else:
                wanted.append(bucket.start - NEAR_MS)
        return max(min(wanted), now_ms + INTERVAL_MS) if wanted else None

    async def round(self, now_ms: int, complete: int) -> None:
        """Write new records, split buckets, remove settled records, load near ones.

        `complete` is the offset up to which all waiting records were added. Raises StorageError.
        """
        self.hurried = False
        if now_ms < self._frontier_ms - BACK_MS:
            self._go_back(now_ms)
        base_ms = max(now_ms, self._frontier_ms)
        refusal = None
        try:
            await self._change(now_ms, base_ms, complete)
        except StorageError as error:
            refusal = error
        await self._bring_near(now_ms)
        if refusal is not None:
            raise refusal

    async def _change(self, now_ms: int, base_ms: int, complete: int) -> None:
        """Write all changes of one round in one transaction."""
        update = IndexUpdate()
        self._in_flight, self._unwritten = self._unwritten, DueList()
        self._in_flight.forget(self._log.settled)
        try:
            put = await self._part(update, base_ms, now_ms)
            self._admit_near(put, 0)  # normally none
            put.extend(self._in_flight)
            self._put(update, put, base_ms)
            await self._remove_spent(update, now_ms)
            await self._write(update, complete)
        finally:
            self._unwritten.extend(self._in_flight)  # not written
            self._in_flight = DueList()

    def _go_back(self, now_ms: int) -> None:
        """Reset the frontier after the clock was set back by far, so that buckets are reloaded."""
        self._frontier_ms = now_ms >> BITS_MIN << BITS_MIN
        for bucket in self._buckets.values():
            bucket.loaded, bucket.loaded_number = False, -1

    async def _write(self, update: IndexUpdate, complete: int) -> None:
        if not update.changes and complete - self._complete < PROGRESS_OFFSETS:
            self._in_flight = DueList()  # all are settled
            return
        await self._log.settlements_safe()
        if self.closed:
            return
        update.changes.append((self._prefix + ABOUT, ABOUT_VALUE.pack(VERSION, complete)))
        try:
            await self._state.write_behind(update.changes)
        finally:
            # If the write fails, the changes are visible nevertheless, and retried with the next
            # write.
            self._complete = complete
            self._in_flight = DueList()
            for bucket, number in update.removed:
                bucket.chunks.pop(number, None)
            for start, bits, number, count in update.added:
                self._bucket(start, bits).chunks[number] = count
            self._buckets = {
                place: bucket for place, bucket in self._buckets.items() if bucket.chunks
            }

    def _put(self, update: IndexUpdate, dues: DueList, base_ms: int) -> None:
        """Plan to write records to their buckets."""
        for start, bits, part in dues.buckets(base_ms):
            bucket = self._buckets.get((start, bits))
            if bucket is not None:
                self._take_last(update, bucket, part)
            for count, value in part.pieces(CHUNK_COUNT_MAX):
                self._number += 1
                update.changes.append((self._key(start, bits, self._number, count), value))
                update.added.append((start, bits, self._number, count))

    def _take_last(self, update: IndexUpdate, bucket: DueBucket, part: DueList) -> None:
        """Merge a bucket's small last chunk into the new records for it."""
        if not bucket.chunks:
            return
        number, count = next(reversed(bucket.chunks.items()))
        if count + len(part) > SMALL_COUNT_MAX or (bucket, number) in update.removed:
            return
        value = self._state.get(self._key(bucket.start, bucket.bits, number, count))
        if value is not None:
            part.unpack(value)
        self._remove(update, bucket, number)

    def _remove(self, update: IndexUpdate, bucket: DueBucket, number: int) -> None:
        count = bucket.chunks[number]
        update.changes.append((self._key(bucket.start, bucket.bits, number, count), None))
        update.removed.add((bucket, number))

    async def _part(self, update: IndexUpdate, base_ms: int, now_ms: int) -> DueList:
        """Take records out of buckets that are near, to be put into smaller ones."""
        taken = DueList()
        left = CHUNKS_AT_ONCE_MAX
        for bucket in sorted(self._buckets.values(), key=_by_start):
            if bucket.loaded or bucket.bits == BITS_MIN or bucket.stop <= now_ms:
                continue  # one whose time is over is loaded unsplit
            if bucket.start >= base_ms + (1 << bucket.bits):
                continue
            if not left:
                self.hurried = True
                break
            numbers = list(bucket.chunks)[:left]
            self.hurried |= len(numbers) < len(bucket.chunks)
            taken.extend(await self._fetch(bucket, numbers))
            for number in numbers:
                self._remove(update, bucket, number)
            left -= len(numbers)
        taken.forget(self._log.settled)
        return taken

    async def _fetch(self, bucket: DueBucket, numbers: list[int]) -> DueList:
        """Return the records of some adjacent chunks."""
        dues = DueList()
        if not numbers:
            return dues
        start, bits = bucket.start, bucket.bits
        first = self._key(start, bits, numbers[0], 0)
        stop = self._key(start, bits, numbers[-1] + 1, 0)
        for _, value in await self._state.fetch(first, stop, len(numbers)):
            dues.unpack(value)
        return dues

    async def _remove_spent(self, update: IndexUpdate, now_ms: int) -> None:
        """Plan to remove past buckets whose records are all settled."""
        for bucket in list(self._buckets.values()):
            over = bucket.loaded and bucket.stop <= now_ms
            if not over or now_ms < bucket.check_ms:
                continue
            for numbers in _sliced(list(bucket.chunks), CHUNKS_AT_ONCE_MAX):
                dues = await self._fetch(bucket, numbers)
                dues.forget(self._log.settled)
                if len(dues):
                    bucket.check_ms = now_ms + RECHECK_MS
                    continue
                for number in numbers:
                    if (bucket, number) not in update.removed:
                        self._remove(update, bucket, number)

    # -- near records

    async def _bring_near(self, now_ms: int) -> None:
        """Load buckets that are due soon into the wheel."""
        target_ms = (now_ms + NEAR_MS) >> BITS_MIN << BITS_MIN
        for bucket in sorted(self._buckets.values(), key=_by_start):
            if bucket.loaded:
                continue
            if bucket.start >= target_ms:
                break
            if len(self._wheel) > NEAR_COUNT_MAX and bucket.start > now_ms + NEAR_MS_MIN:
                return
            if bucket.bits > BITS_MIN and bucket.stop > now_ms:
                self.hurried = True  # it must be split first
                return
            self._advance(bucket.start)
            if not await self._load(bucket):
                return
            self._advance(bucket.stop)
        self._advance(target_ms)

    async def _load(self, bucket: DueBucket) -> bool:
        """Load a bucket's records into the wheel. Returns False if that is full before the end."""
        numbers = [number for number in bucket.chunks if number > bucket.loaded_number]
        for sliced in _sliced(numbers, CHUNKS_AT_ONCE_MAX):
            if bucket.loaded_number >= 0 and len(self._wheel) > NEAR_COUNT_MAX:
                return False
            dues = await self._fetch(bucket, sliced)
            dues.forget(self._log.settled)
            dues.sort()
            if self.closed:
                return False
            self._admit(dues)
            bucket.loaded_number = sliced[-1]
        bucket.loaded = True
        return True

    def _advance(self, to_ms: int) -> None:
        """Move the frontier to `to_ms`, and load unwritten records due before it."""
        if to_ms > self._frontier_ms:
            from_ms, self._frontier_ms = self._frontier_ms, to_ms
            self._admit_near(self._unwritten, from_ms)

    # -- the end

    async def write_down(self, now_ms: int, complete: int) -> None:
        """Write all changes: the node stops. Raises StorageError."""
        await self._change(now_ms, max(now_ms, self._frontier_ms), complete)

    async def remove(self) -> None:
        """Remove the index from the state store: the delayed-message store was deleted."""
        self.closed = True
        await self._state.write_behind([])  # wait for the write in progress
        await _remove_keys(self._state, self._prefix)


async def remove_index(state: StateStore, store: bytes) -> None:
    """Remove the index of a store that nobody has opened."""
    await _remove_keys(state, PREFIX + store)


async def _remove_keys(state: StateStore, prefix: bytes) -> None:
    for some in _sliced(list(state.keys(prefix, prefix + BEHIND)), CHUNK_COUNT_MAX):
        await state.write_behind([(key, None) for key in some])


def _by_start(bucket: DueBucket) -> tuple[int, int]:
    """Sort key: start time; a larger bucket before the smaller ones that it overlaps."""
    return bucket.start, -bucket.bits


def _sliced(items: list[Item], count_max: int) -> Iterator[list[Item]]:
    return (items[at : at + count_max] for at in range(0, len(items), count_max))


def index_problem(
    entries: Iterable[tuple[bytes, bytes]], end: int, settled: RangeSet
) -> str | None:
    """Return how a store's index differs from its log, which ends at `end`; None if it agrees.

    `entries` are those of the state store that begin with the index's prefix.
    """
    complete, known = 0, RangeSet()
    for key, value in entries:
        place = key[len(PREFIX) + STORE_BYTES :]
        if place == ABOUT and len(value) == ABOUT_VALUE.size:
            complete = ABOUT_VALUE.unpack(value)[1]
        elif place.startswith(CHUNK):
            dues = DueList()
            dues.unpack(value)
            known.add_all([(offset, offset + 1) for offset in sorted(dues.offsets())])
    if complete > end:
        return f"covers offsets below {complete}, but the log ends at {end}"
    missing = settled.gaps(0, complete)
    for first, stop in known:
        missing.remove(first, stop)
    if missing:
        return f"lacks {missing.count} delayed messages, the first at offset {missing.first}"
    return None
