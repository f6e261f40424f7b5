"""De-duplication window of a queue: within it no message is stored twice.

Called by the queue around an append; and for exchanges by the topic that has their keys (see
leveret.features.dedup.exchange_log). The log is the source of truth, since its records carry their
keys, and the log keeps the segments of the whole window, even if everything in them is settled: the
state in memory can always be rebuilt from it. So that a restart need not read the whole window, the
keys are written behind to the state store, with the offset up to which they are complete.

    dedup/ID/mark        u8 version | u64 offset up to which the keys are complete
    dedup/ID/i/OFFSET    one chunk: u64 stop offset | u64 time of its last key | u8 cold or not
    dedup/ID/c/OFFSET    its entries, as SeenKeys packs them
    dedup/ID/k/KEY       u64 time: of each key of a cold chunk

ID is the queue's incarnation, OFFSET that of a chunk's first record, big-endian. Memory is bounded:
if more keys came within the window than may be held, the oldest chunks become cold, and their keys
are looked up in the state store.
"""

from __future__ import annotations

import struct
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from leveret.errors import StorageError
from leveret.features.dedup.keys import SeenKeys
from leveret.ports.records import RecordFlag

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from typing import TypeAlias

    from leveret.core.dependencies import CoreServices
    from leveret.ports import SharedLog
    from leveret.ports.records import Batch, BatchBuilder

    Changes: TypeAlias = Sequence[tuple[bytes, bytes | None]]

__all__ = ["DedupWindow", "window_prefix", "window_problem"]

# Publishes of clients are checked; returning messages were checked when they were first published.
# Those put back by an operator have RecordFlag.PUT_BACK, which SeenKeys handles.
UNCHECKED = RecordFlag.DEAD_LETTERED | RecordFlag.RETRIED
# Delay of writing keys behind; a crash loses no more, as the next start reads the log from there.
SAVE_DELAY_MS = 1000

VERSION = 1
MARK = struct.Struct("<BQ")
OFFSET = struct.Struct(">Q")  # sorts numerically
CHUNK = struct.Struct("<QQB")
TIME = struct.Struct("<Q")
ENTRY = struct.Struct("<16sQQ")


class Windowed(Protocol):
    """Owner of a window: a queue, or a topic of keys."""

    held: bool

    @property
    def log(self) -> SharedLog:
        """Log of the records with keys."""
        ...

    @property
    def deleted(self) -> bool:
        """Whether the owner was deleted."""
        ...

    @property
    def window_ms(self) -> int:
        """Length of the window in ms."""
        ...

    @property
    def window_id(self) -> bytes:
        """Name of the window in the state store, unique for all time."""
        ...

    def keep_from(self, offset: int) -> None:
        """Keep records from `offset` on, settled or not; the keys before have expired."""
        ...

    def resume(self) -> None:
        """Resume appending: the window is restored."""
        ...


@dataclass(slots=True)
class KeyChunk:
    """Keys that were written to the state store together: those of the records [first, stop)."""

    first: int
    stop: int
    last_ms: int  # when the last of them was stored
    cold: bool = False


class DedupWindow:
    """De-duplication window of a queue. Without `keeps` it is in memory only.

    It holds at most `keys_max` keys in memory, 48 to 96 bytes each.
    """

    def __init__(
        self, queue: Windowed, services: CoreServices, keys_max: int, *, keeps: bool
    ) -> None:
        self.duplicates = 0  # duplicates dropped since the start
        self._queue = queue
        self._log = queue.log
        self._services = services
        self._keys_max = keys_max
        self._keeps = keeps
        self._prefix = window_prefix(queue.window_id)
        self._seen = SeenKeys()
        self.complete = queue.log.end  # keys of records below are in the state store
        self.is_incomplete = False  # records from `complete` on must be given to `restore`
        self._known = True  # whether the state store had the window
        self._chunks: deque[KeyChunk] = deque()
        self._off = False
        self._writing = False
        self._closed = False
        # Keys removed by an operator and not written yet: of cold chunks, chunks to rewrite, and
        # the end of the records that the state store must cover.
        self._forgotten: dict[bytes, None] = {}
        self._rewritten: dict[int, None] = {}
        self._rewritten_stop = 0
        self._timer = services.timers.timer(self._look_after)

    @property
    def window_ms(self) -> int:
        """Length of the window in ms; 0 while de-duplication is disabled."""
        return self._queue.window_ms

    @property
    def key_count(self) -> int:
        """Number of keys in memory, expired ones not yet removed included."""
        return len(self._seen)

    # -- around an append

    def admit(self, builder: BatchBuilder) -> None:
        """Drop duplicates from the records to be appended, and add the keys of the others."""
        duplicates = self._seen.admit(
            builder.preview(self._log.end), self.window_ms, UNCHECKED, self._older
        )
        if duplicates is not None:
            self.duplicates += duplicates.count
            self._services.feature_counters.duplicates += duplicates.count
            builder.drop(duplicates)
        self._wake_by(self._services.timers.wall_ms() + SAVE_DELAY_MS)

    def index(self, batch: Batch) -> None:
        """Add the keys of records to be appended, which are no duplicates."""
        self._seen.index(batch, 0, self.window_ms, UNCHECKED, self._older)
        self._wake_by(self._services.timers.wall_ms() + SAVE_DELAY_MS)

    def forget_key(self, key: bytes) -> bool:
        """Remove a key; on disk once `is_saved`. Returns False if it was not in the window."""
        if self.seen_ms(key) is None:
            return False
        offset = self._seen.forget(key)
        if offset is None:
            self._forgotten[self._prefix + b"k/" + key] = None
        else:
            self._rewritten_stop = max(self._rewritten_stop, offset + 1)
            self._rewritten.update(
                (chunk.first, None) for chunk in self._chunks if chunk.first <= offset < chunk.stop
            )
        self._wake_by(self._services.timers.wall_ms())
        return True

    @property
    def is_saved(self) -> bool:
        """Whether all removed keys are removed from the state store, too."""
        if not self._keeps or self._off:
            return True
        told = not self._forgotten and not self._rewritten and not self._writing
        return told and self._rewritten_stop <= self.complete

    def seen_ms(self, key: bytes) -> int | None:
        """Return when the message with a key was stored, in ms; None if not within the window."""
        self._seen.expire(self._services.timers.wall_ms(), self.window_ms)
        found = self._seen.find(key)
        if found is not None:
            return found[0]
        return None if self._older is None else self._older(key)

    @property
    def _older(self) -> Callable[[bytes], int | None] | None:
        """Lookup of keys that are not in memory; None if all are."""
        return self._time_of_cold if self._chunks and self._chunks[0].cold else None

    def truncate(self) -> None:
        """Remove the keys of records from the log's end on, which were lost."""
        self._seen.truncate(self._log.end)

    def forget(self, first: int, stop: int) -> None:
        """Remove the keys of the records [first, stop), which were undone before their commit."""
        self._seen.forget_range(first, stop)

    def _time_of_cold(self, key: bytes) -> int | None:
        value = self._services.state.get(self._prefix + b"k/" + key)
        if self._prefix + b"k/" + key in self._forgotten:
            return None
        return None if value is None else TIME.unpack(value)[0]

    # -- start and end

    def begin(self) -> None:
        """Start the window of a queue that may hold messages; their keys are not added."""
        self._off = False
        self.complete = self._log.committed
        self._pin()
        self._wake_by(self._services.timers.wall_ms())

    def open(self) -> None:
        """Load what the state store has of an earlier run's keys.

        If it `is_incomplete` then, nothing may be appended before `restored` was called.
        """
        if not self._keeps:
            return
        mark = self._services.state.get(self._prefix + b"mark")
        self.complete = 0
        self._known = mark is not None and len(mark) == MARK.size and mark[0] == VERSION
        if self._known and mark is not None:
            self.complete = min(MARK.unpack(mark)[1], self._log.end)
            self._load()
        self._pin()
        self.is_incomplete = self._queue.held = self.complete < self._log.end

    async def find_first(self) -> None:
        """Move `complete` to the first record of the window, where the state store had nothing."""
        if self._known:
            return
        first_ms = max(self._services.timers.wall_ms() - self.window_ms, 0)
        try:
            self.complete = min(await self._log.offset_at(first_ms), self._log.end)
        except StorageError as error:
            self._services.report(self._queue, error)  # all of the log is read

    def restore(self, batch: Batch) -> None:
        """Add the keys of a batch of the log; called in order of offsets."""
        if batch.base_offset not in self._log.undone and not self._off:
            self._seen.index(batch, self.complete, self.window_ms, UNCHECKED, self._older)

    def restored(self) -> None:
        """Let the owner append again; all records from `complete` on were restored."""
        if not self.is_incomplete:
            return
        self.is_incomplete = False
        now_ms = self._services.timers.wall_ms()
        self._seen.expire(now_ms, self.window_ms)
        if not self._off:
            self._pin()
        if not self._known and self.complete <= self._log.first > 0:
            self._services.report(self._queue, _rebuilt(len(self._seen)))
        self._queue.resume()
        self._wake_by(now_ms)

    def _load(self) -> None:
        state, prefix = self._services.state, self._prefix
        for key, value in state.scan(prefix + b"i/"):
            stop, last_ms, cold = CHUNK.unpack(value)
            chunk = KeyChunk(OFFSET.unpack(key[-OFFSET.size :])[0], stop, last_ms, bool(cold))
            self._chunks.append(chunk)
            if not chunk.cold:
                self._seen.load(state.get(self._chunk_key(chunk)) or b"", self._log.end)

    def end(self) -> None:
        """Remove all keys: de-duplication was disabled, or the queue deleted."""
        self._off = True
        self._seen.clear()
        self._chunks.clear()
        self._timer.set(None)
        self._look_after()

    def close(self) -> None:
        """Refer to the owner no more, once what is to be written is written: it was deleted."""
        self._closed = True
        if not self._writing:
            self._release()

    def _release(self) -> None:
        self._timer.close()
        del self._queue

    # -- writing behind

    def _pin(self) -> None:
        """Make the log keep the records of the window."""
        if self._keeps:
            self._queue.keep_from(self._chunks[0].first if self._chunks else self.complete)

    def _wake_by(self, due_ms: int) -> None:
        if self._timer.due_ms is None or self._timer.due_ms > due_ms:
            self._timer.set(due_ms)

    def _look_after(self) -> None:
        if not self._keeps:
            self._seen.expire(self._services.timers.wall_ms(), self.window_ms)
            self._rest()
        elif not self._writing and not self._queue.held:
            self._writing = True
            self._services.spawn(self._write())

    def _rest(self) -> None:
        """Set the timer for the expiry of the oldest keys."""
        oldest = self._chunks[0].last_ms if self._chunks else self._seen.oldest_ms
        if oldest is not None and not self._off:
            now_ms = self._services.timers.wall_ms()
            self._wake_by(max(oldest + self.window_ms, now_ms + SAVE_DELAY_MS))

    async def _write(self) -> None:
        """Update the state store. One call at a time, so that writes stay in order."""
        off = self._off
        try:
            await (self._erase() if off else self._save())
        except StorageError as error:
            self._services.report(self._queue, error)
            self._wake_by(self._services.timers.wall_ms() + SAVE_DELAY_MS)
        finally:
            self._writing = False
        if off != self._off:
            self._wake_by(self._services.timers.wall_ms())
        elif self._closed and self._timer.due_ms is None:  # else it is tried again
            self._release()
        else:
            self._rest()

    async def _erase(self) -> None:
        known = self._services.state.scan(self._prefix)
        await self._services.state.write_behind([(key, None) for key, _ in known])

    async def _save(self) -> None:
        """Write the keys committed since the last time, and remove expired ones."""
        now_ms = self._services.timers.wall_ms()
        stop = max(self._log.committed, self.complete)
        self._seen.expire(now_ms, self.window_ms)
        changes: list[tuple[bytes, bytes | None]] = []
        expired = self._expired(now_ms, changes)
        packed = self._seen.pack(self.complete, stop)
        chunk = None
        if packed:
            chunk = KeyChunk(self.complete, stop, ENTRY.unpack(packed[-ENTRY.size :])[1])
            changes.append((self._chunk_key(chunk), packed))
            changes.append(self._described(chunk))
        changes.append((self._prefix + b"mark", MARK.pack(VERSION, stop)))
        forgotten, rewritten = list(self._forgotten), list(self._rewritten)
        changes += self._without_forgotten(forgotten, rewritten)
        await self._services.state.write_behind(changes)
        for key in forgotten:
            self._forgotten.pop(key, None)
        for first in rewritten:
            self._rewritten.pop(first, None)
        if self._off:
            return
        for _ in range(expired):
            self._chunks.popleft()
        if chunk is not None:
            self._chunks.append(chunk)
        self.complete = stop
        self._pin()
        await self._cool()

    def _without_forgotten(
        self, keys: list[bytes], firsts: list[int]
    ) -> list[tuple[bytes, bytes | None]]:
        """Return the changes that remove keys deleted by an operator from written chunks."""
        changes: list[tuple[bytes, bytes | None]] = [(key, None) for key in keys]
        changes += [
            (self._chunk_key(chunk), self._seen.pack(chunk.first, chunk.stop))
            for chunk in self._chunks
            if chunk.first in firsts and not chunk.cold
        ]
        return changes

    def _expired(self, now_ms: int, changes: list[tuple[bytes, bytes | None]]) -> int:
        """Add the removal of expired chunks to `changes`; return the number of these chunks."""
        count = 0
        for chunk in self._chunks:
            if chunk.last_ms + self.window_ms > now_ms:
                break
            count += 1
            if chunk.cold:
                changes += self._cold_keys(chunk, gone=True)
            changes.append((self._chunk_key(chunk), None))
            changes.append((self._described(chunk)[0], None))
        return count

    async def _cool(self) -> None:
        """Move the oldest keys to the state store if there are too many in memory."""
        for chunk in list(self._chunks):
            if len(self._seen) <= self._keys_max or self._off:
                return
            if chunk.cold:
                continue
            cold = KeyChunk(chunk.first, chunk.stop, chunk.last_ms, cold=True)
            changes = [*self._cold_keys(chunk), self._described(cold)]
            await self._services.state.write_behind(changes)
            if not self._off:
                chunk.cold = True
                self._seen.drop_below(chunk.stop)

    def _cold_keys(
        self, chunk: KeyChunk, *, gone: bool = False
    ) -> list[tuple[bytes, bytes | None]]:
        """Return the keys of a chunk one by one, to be added; or `gone`, removed unless newer."""
        get, prefix = self._services.state.get, self._prefix + b"k/"
        found: list[tuple[bytes, bytes | None]] = []
        for key, time_ms, _ in ENTRY.iter_unpack(get(self._chunk_key(chunk)) or b""):
            value = TIME.pack(time_ms)
            if not gone:
                found.append((prefix + key, value))
            elif get(prefix + key) == value:
                found.append((prefix + key, None))
        return found

    def _chunk_key(self, chunk: KeyChunk) -> bytes:
        return self._prefix + b"c/" + OFFSET.pack(chunk.first)

    def _described(self, chunk: KeyChunk) -> tuple[bytes, bytes]:
        return (
            self._prefix + b"i/" + OFFSET.pack(chunk.first),
            CHUNK.pack(chunk.stop, chunk.last_ms, chunk.cold),
        )


def _rebuilt(count: int) -> StorageError:
    return StorageError(
        "the keys of its de-duplication window were not found and were rebuilt from the "
        f"{count} messages that the log still holds; others may be stored twice"
    )


def window_prefix(window_id: bytes) -> bytes:
    """Return what all keys of a window in the state store begin with."""
    return b"dedup/%s/" % window_id


def window_problem(entries: Iterable[tuple[bytes, bytes]], prefix: bytes, end: int) -> str | None:
    """Return how a window's keys differ from its log, which ends at `end`; None if they agree.

    `entries` are those of the state store that begin with `prefix`.
    """
    complete, stops, packed = 0, dict[bytes, int](), set[bytes]()
    for key, value in entries:
        kind, place = key[len(prefix) :][:2], key[len(prefix) + 2 :]
        if kind == b"i/":
            stops[place] = CHUNK.unpack(value)[0]
        elif kind == b"c/":
            packed.add(place)
        elif key == prefix + b"mark":
            complete = MARK.unpack(value)[1]
    if complete > end:
        return f"covers offsets below {complete}, but the log ends at {end}"
    if max(stops.values(), default=0) > complete:
        return f"covers offsets below {complete}, but has keys behind them"
    lost = sorted(stops.keys() - packed)
    if lost:
        return f"lacks the keys from offset {OFFSET.unpack(lost[0])[0]} on"
    return None
