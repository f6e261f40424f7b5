"""Compaction by key: sealed segments are written anew without superseded records.

A pass over a log notes the latest offset of each key in its dirty part, the segments that were not
compacted yet; then it goes over all segments from the oldest on, and writes each anew that holds
something superseded (storage/rewriting.py). Each segment is a step of its own in the worker thread;
between two steps the event loop puts the new file in the place of the old one. Whatever happens in
between, the files are a log that recovers: decision 0053 says why.
"""

from __future__ import annotations

import logging
import secrets
import threading
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeAlias
from urllib.parse import unquote

from leveret.errors import StorageError
from leveret.storage.commit import Committer
from leveret.storage.files import storage_error
from leveret.storage.key_map import ENTRY_BYTES, SECRET_BYTES, KeyMap
from leveret.storage.rewriting import Rewrite, Rewritten, SegmentSource, Throttle, note_keys
from leveret.storage.segment import Segment

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Generator
    from pathlib import Path

    from leveret.storage.files import FileSystem
    from leveret.storage.keyring import Keyring
    from leveret.storage.log import PartitionLog

__all__ = ["CompactionFigures", "Compactor", "is_clean", "is_due"]

logger = logging.getLogger(__name__)

# As in Kafka: a pass pays when half of the log is dirty. A day later one pays in any case.
DIRTY_PART = 2
WAITS_MS_MAX = 24 * 3_600_000
MAP_FILL = 4 / 3  # entries of a map for each key: it is three quarters full at most

Steps: TypeAlias = "Generator[Callable[[], None], None, None]"


@dataclass(slots=True)
class CompactionFigures:
    """Figures of the compaction of one log, or of all logs of a node."""

    passes: int = 0
    failures: int = 0
    rewritten: int = 0  # segments
    removed: int = 0  # records
    freed_bytes: int = 0
    last_ms: int = 0  # when the last pass has ended

    def add(self, rewritten: Rewritten) -> None:
        """Count a segment that was written anew."""
        self.rewritten += 1
        self.removed += rewritten.superseded.count
        self.freed_bytes += rewritten.freed_bytes


@dataclass(slots=True)
class _PassStep:
    """A piece of work for the thread, and its outcome: an error that it shall have raised."""

    work: Callable[[], None]
    error: StorageError | OSError | None = None

    def run(self) -> None:
        """Run the work. A StorageError is kept like an OSError: a committer knows only these."""
        try:
            self.work()
        except (StorageError, OSError) as error:
            self.error = error


@dataclass(slots=True)
class _Pass:
    """One pass over a log, on the event loop; each step is yielded and run in the thread.

    A failed step raises its error where it was yielded.
    """

    compactor: Compactor
    log: PartitionLog
    tombstones_ms: int
    now_ms: int
    figures: CompactionFigures = field(default_factory=CompactionFigures)
    bytes_before: int = 0
    segments: int = 0

    def steps(self) -> Steps:
        """Compact the log as far as it can be now."""
        segments = self.log.compactable()
        if not segments:
            return
        self.segments, self.bytes_before = len(segments), sum(each.size for each in segments)
        clean = 0
        while clean < len(segments) and is_clean(self.log, segments[clean]):
            clean += 1
        dirty = segments[clean:]
        count = sum(each.stop - max(each.base, each.compacted_stop) for each in dirty)
        keys = self.compactor.make_map(count)
        covered = segments[-1].stop
        for segment in dirty:
            first = max(segment.base, segment.compacted_stop) if segment is dirty[0] else 0
            full_at: list[int] = []
            source = self._source(segment)
            yield lambda source=source, first=first, full_at=full_at: full_at.append(  # type: ignore[misc]
                note_keys(source, keys, first)
            )
            if full_at[0] < source.stop:
                covered = full_at[0]
                break
        for segment in segments:
            if segment.base >= covered:
                break
            yield from self._rewrite(segment, keys, covered)

    def _source(self, segment: Segment) -> SegmentSource:
        compactor, stop = self.compactor, segment.stop
        live = self.log.settled.gaps(segment.base, stop)
        return SegmentSource(
            compactor.files, compactor.keyring, compactor.throttle, segment, stop, live
        )

    def _rewrite(self, segment: Segment, keys: KeyMap, covered: int) -> Steps:
        revision = self.log.next_revision(segment)
        if revision is None or not self.log.may_compact(segment):
            return  # retention was faster
        rewrite = Rewrite(
            self._source(segment),
            keys,
            covered=covered,
            now_ms=self.now_ms,
            due_ms=self.compactor.wall_ms() + self.tombstones_ms,  # what is earlier went already
            settled=self.log.settled_below(segment.base),
            revision=revision,
        )
        found: list[Rewritten | None] = []
        yield lambda: found.append(rewrite.run())
        made = found[0]
        if made is not None and self.log.replace(segment, made):
            self.figures.add(made)


class Compactor:
    """Compacts the logs of a node, one after the other, in one thread.

    `bytes_per_s` bounds what it reads and writes, `map_bytes_max` the memory for keys, which is
    taken during a pass only.
    """

    def __init__(
        self,
        files: FileSystem,
        keyring: Keyring,
        loop: asyncio.AbstractEventLoop,
        wall_ms: Callable[[], int],
        *,
        bytes_per_s: int,
        map_bytes_max: int,
    ) -> None:
        self.files = files
        self.keyring = keyring
        self.figures = CompactionFigures()
        self._loop = loop
        self.wall_ms = wall_ms
        self._map_bytes_max = map_bytes_max
        self._stop = threading.Event()
        self.throttle = Throttle(bytes_per_s, self._stop)
        self.worker: Committer | None = None  # once there is something to do
        self._waiting: dict[PartitionLog, None] = {}
        self._running: _Pass | None = None
        self._failing: dict[PartitionLog, str] = {}  # with what they failed last

    def make_map(self, count: int) -> KeyMap:
        """Return an empty map for `count` keys, or as many as memory is for."""
        wanted = int(count * MAP_FILL + 1) * ENTRY_BYTES * 2  # it takes a power of two below
        return KeyMap(min(wanted, self._map_bytes_max), secrets.token_bytes(SECRET_BYTES))

    def check(self, log: PartitionLog) -> None:
        """Compact a log soon if it pays now. Cheap if it does not."""
        if is_due(log, self.wall_ms()):
            self.compact(log)

    def compact(self, log: PartitionLog) -> None:
        """Compact a log as soon as those that wait already are compacted."""
        self._waiting[log] = None
        if self._running is None:
            self._begin()

    def _begin(self) -> None:
        while self._waiting and self._running is None:
            log = next(iter(self._waiting))
            del self._waiting[log]
            compaction = log.compaction
            if compaction is not None and not self._stop.is_set():
                now_ms = self.wall_ms()
                self._running = _Pass(self, log, compaction.tombstones_ms, now_ms)
                self._next(self._running, self._running.steps(), time.monotonic(), None)

    def _next(self, running: _Pass, steps: Steps, began: float, error: Exception | None) -> None:
        """Run a pass up to its next step, or to its end."""
        try:
            work = next(steps) if error is None else steps.throw(error)
        except StopIteration:
            self._ended(running, began, None)
        except (StorageError, OSError) as failure:
            self._ended(running, began, failure)
        except BaseException:
            self._running = None
            raise
        else:
            self._submit(running, steps, began, _PassStep(work))

    def _submit(self, running: _Pass, steps: Steps, began: float, step: _PassStep) -> None:
        def done(error: OSError | None) -> None:
            if running.log.is_closed or self._stop.is_set():
                steps.close()
                self._running = None
            else:
                self._next(running, steps, began, step.error or error)
            self._begin()

        if self.worker is None:
            self.worker = Committer(self._loop, 1, "leveret-compact")
        self.worker.submit(step.run, done)

    def _ended(self, running: _Pass, began: float, error: StorageError | OSError | None) -> None:
        self._running = None
        log, figures = running.log, running.figures
        figures.last_ms = self.wall_ms() if error is None else 0
        figures.passes, figures.failures = int(error is None), int(error is not None)
        for total in (self.figures, log.compacted):
            _add(total, figures)
        if figures.rewritten:
            logger.info(
                "compacted %s: %d of %d segments written anew, %d messages removed, %d of %d bytes "
                "freed, in %.1f s",
                _subject(log.directory), figures.rewritten, running.segments, figures.removed,
                figures.freed_bytes, running.bytes_before, time.monotonic() - began,
            )  # fmt: skip
        if error is None:
            self._failing.pop(log, None)
        else:
            self._complain(log, error)

    def _complain(self, log: PartitionLog, error: StorageError | OSError) -> None:
        """Warn of a failure, once until something else fails."""
        told = error
        if isinstance(error, OSError):
            told = storage_error("write a compacted segment in", log.directory, error)
        if self._failing.get(log) != str(told):
            self._failing[log] = str(told)
            logger.warning(
                "%s is not compacted further: %s; it is tried again every minute",
                _subject(log.directory), told,
            )  # fmt: skip

    def forget(self, log: PartitionLog) -> None:
        """Drop a log that is closed or deleted."""
        self._waiting.pop(log, None)
        self._failing.pop(log, None)

    def stop(self) -> None:
        """Begin nothing more; what is being written is left."""
        self._stop.set()
        self._waiting.clear()

    def close(self) -> None:
        """Stop, and end the thread."""
        self.stop()
        if self.worker is not None:
            self.worker.close()


def is_clean(log: PartitionLog, segment: Segment) -> bool:
    """Whether a segment was compacted: what is behind, if anything, was removed with its file."""
    return log.settled.contains(max(segment.base, segment.compacted_stop), segment.stop)


def is_due(log: PartitionLog, now_ms: int) -> bool:
    """Whether a pass over a log pays: half of it is dirty, or it has waited long enough."""
    segments = log.compactable()
    dirty = sum(each.size for each in segments if not is_clean(log, each))
    if any(0 < each.due_ms <= now_ms for each in segments):
        return True
    size = sum(each.size for each in segments)
    has_waited = now_ms - log.compacted.last_ms >= WAITS_MS_MAX
    return bool(dirty) and (dirty * DIRTY_PART >= size or has_waited)


def _add(total: CompactionFigures, figures: CompactionFigures) -> None:
    total.passes += figures.passes
    total.failures += figures.failures
    total.rewritten += figures.rewritten
    total.removed += figures.removed
    total.freed_bytes += figures.freed_bytes
    total.last_ms = max(total.last_ms, figures.last_ms)


def _subject(directory: Path) -> str:
    """Return what a log belongs to, for people."""
    topic = directory.parent.name.rpartition("~~")[0]
    return f"queue '{unquote(topic)}' in vhost '{unquote(directory.parts[-3])}'"
