"""All logs of a node: open, close, delete, and the threads and caches they share.

DATA/lock                         held while the node runs
DATA/state.lmdb/                  the state store
DATA/losses.jsonl                 what was lost and is not acknowledged
DATA/topics/VHOST/TOPIC/PARTITION logs that are kept
DATA/topics/.deleted/             directories on their way out
DATA/transient/                   what memory had no room for; removed at the next start
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING
from urllib.parse import unquote

from leveret.errors import DiskFullError, StorageError
from leveret.ports import Durability, LogName, Retention
from leveret.ports.losses import Loss, LossKind
from leveret.storage.commit import FlushFigures
from leveret.storage.compaction import Compactor
from leveret.storage.decisions import (
    DECISIONS_INCARNATION,
    DECISIONS_TOPIC,
    Decisions,
    read_decisions,
)
from leveret.storage.files import storage_error
from leveret.storage.keyring import Keyring
from leveret.storage.lock import DirectoryLock
from leveret.storage.log import PartitionLog
from leveret.storage.losses import LossLedger
from leveret.storage.marks import LogMarks, boot_id
from leveret.storage.names import encode_name, list_logs, log_key
from leveret.storage.note_writer import NoteWriter
from leveret.storage.reader import OpenFiles
from leveret.storage.recoveries import Recoveries
from leveret.storage.recovery import Recovered, is_all_settled, recover
from leveret.storage.services import LogServices
from leveret.storage.tail import TailCache
from leveret.storage.threads import StorageThreads
from leveret.storage.trash import Trash

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
    from pathlib import Path

    from leveret.ports import Clock, SharedLog, StateStore
    from leveret.ports.ranges import RangeSet
    from leveret.storage.files import FileSystem
    from leveret.storage.led_logs import LedLogs
    from leveret.storage.marks import LogMark
    from leveret.storage.recovery import LostRange
    from leveret.storage.segment import Segment

__all__ = ["FileTopicStore", "StorageLimits"]

logger = logging.getLogger(__name__)

SETTLEMENT_SEGMENT_BYTES = 1 << 20  # a checkpoint tells all that is in earlier ones
DECISION_SEGMENT_BYTES = 1 << 20  # decisions live for a second: files that can go soon


@dataclass(frozen=True, slots=True)
class StorageLimits:
    """Limits of the storage engine, each with its reason."""

    segment_bytes_max: int = 64 << 20  # what recovery reads of a log; unit of freed space
    tail_cache_bytes_max: int = 64 << 20  # consumers that keep up are served from this much memory
    settle_flush_interval_ms: int = (
        50  # settlements this recent may be delivered again after a crash
    )
    settle_sync_interval_ms: int = 1000  # the same after the machine's death, without new messages
    retention_interval_ms: int = 60_000  # records may be kept for this time beyond their age
    mark_interval_ms: int = 1000  # messages this recent may be missing after a crash unnoticed
    commit_threads: int = (
        4  # flushes that run at once: a disk does several in about the time of one
    )
    fetch_threads: int = 4  # reads from a device that run at once
    recoveries_max: int = 3  # logs recovered at once: a thread is left for consumers' reads
    open_files_max: int = 256  # sealed segments kept open for reading, of all logs
    open_segments_max: int = 4096  # segments kept open for writing, of as many logs
    compaction_bytes_per_s: int = 16 << 20  # read and written: a fraction of what a disk does
    compaction_map_bytes_max: int = 32 << 20  # a million keys; more take another pass


class FileTopicStore:
    """`ports.TopicStore` in files. One per node; used on its event loop.

    Takes the data directory's lock unless the caller, who then holds it, passes `lock`: raises
    NodeRunningError, StorageError. `state` is closed by its opener, after this, and so are
    `threads`, without which it starts its own. Without a `keyring` the data directory's is used,
    and no key of it can be unwrapped. `durability` is that of decisions about transactions: the
    strictest of any log that takes part in them. `epoch` is that in which this node leads the
    logs, `led_logs` are the logs as replication reads and commits them.
    """

    def __init__(
        self,
        data: Path,
        files: FileSystem,
        state: StateStore,
        loop: asyncio.AbstractEventLoop,
        *,
        clock: Clock,
        limits: StorageLimits | None = None,
        lock: DirectoryLock | None = None,
        keyring: Keyring | None = None,
        losses: LossLedger | None = None,
        durability: Durability = Durability.FSYNC,
        boot: bytes | None = None,
        epoch: int = 0,
        threads: StorageThreads | None = None,
        led_logs: LedLogs | None = None,
    ) -> None:
        self._limits = limits or StorageLimits()
        self._led_logs = led_logs
        self._topics = data / "topics"
        self._transient = data / "transient"
        self._files = files
        self._trash = Trash(files, self._topics)
        self._state = state
        self._loop = loop
        self._own_lock = None if lock is not None else self._take_lock(data)
        self._logs: dict[Path, PartitionLog] = {}
        self._left: set[str] = set()  # keys of kept logs: of the last run, or opened since
        self._unopened: set[str] = set()  # those that `leave_unopened` has left
        self._touched: dict[Path, None] = {}
        self.opened_since: dict[Path, tuple[Segment, int] | None] | None = None
        self._settle_timer: asyncio.TimerHandle | None = None
        self._flush_timer: asyncio.TimerHandle | None = None
        self._retention_timer: asyncio.TimerHandle | None = None
        self._to_flush: dict[PartitionLog, None] = {}
        self._refused = False  # whether the last settlements could not be written: warn once
        self.flushes = FlushFigures()
        self.tail_cache = TailCache(self._limits.tail_cache_bytes_max)
        self._owns_threads = threads is None
        self._threads = threads or StorageThreads.start(
            loop,
            commit_threads=self._limits.commit_threads,
            fetch_threads=self._limits.fetch_threads,
        )
        self._recoveries = Recoveries(
            loop, self._threads.pool, parallel=self._limits.recoveries_max
        )
        self._keyring = keyring or Keyring(files, data, None)
        self.compactor = Compactor(
            files,
            self._keyring,
            loop,
            clock.wall_ms,
            bytes_per_s=self._limits.compaction_bytes_per_s,
            map_bytes_max=self._limits.compaction_map_bytes_max,
        )
        self._decisions = Decisions(clock.wall_ms)
        self.losses = losses or LossLedger(files, data, clock.wall_ms, logger.error)
        try:
            self._marks = LogMarks(state, boot_id() if boot is None else boot)
            self._services = self._make_services(clock, epoch)
            self._notes = NoteWriter(
                state,
                loop,
                self._threads.committer,
                self._logs,
                interval_ms=self._limits.mark_interval_ms,
                worked=self._trash.removed,
            )
            self._empty_trash()
            self._left = set(list_logs(files, self._topics))
            self._decision_log = self._open_decisions(durability)
        except BaseException:
            self._stop_threads()
            raise

    def _take_lock(self, data: Path) -> DirectoryLock:
        try:
            self._files.make_directory(data)
        except OSError as error:
            raise storage_error("create", data, error) from error
        return DirectoryLock(data)

    def _make_services(self, clock: Clock, epoch: int) -> LogServices:
        return LogServices(
            files=self._files,
            loop=self._loop,
            clock=clock,
            tail_cache=self.tail_cache,
            keyring=self._keyring,
            committer=self._threads.committer,
            flushes=self.flushes,
            pool=self._threads.pool,
            open_files=OpenFiles(
                self._files, self._limits.open_files_max, self._limits.open_segments_max
            ),
            segment_bytes_max=self._limits.segment_bytes_max,
            decisions=self._decisions,
            epoch=epoch,
            run=self._marks.run,
            touched=self._log_touched,
            closed=self._log_closed,
            deleted=self._log_deleted,
            lost=self._records_lost,
            may_compact=self._may_compact,
            warn=logger.warning,
        )

    def _empty_trash(self) -> None:
        """Remove what the last run left: transient logs, and half-removed deleted ones.

        Marks of deleted logs are removed first, so that their logs are not reported as missing.
        """
        removals = self._trash.take_left(self._transient)
        keys = self._trash.find_deleted(self._marks.unopened)
        if keys:
            with suppress(DiskFullError):  # removing them makes room
                self._state.write(self._marks.forget(keys), durable=True)
        for removal in removals:
            self._threads.committer.submit(removal, self._trash.removed)

    def _open_decisions(self, durability: Durability) -> PartitionLog:
        """Open the log of transaction decisions, before any log asks for one.

        It is recovered here and not in a thread: without it there is nothing else to be done.
        """
        place = "", DECISIONS_TOPIC, DECISIONS_INCARNATION, 0
        key = log_key(*place)
        if self._must_recover(key):
            self._recoveries.keep(key, self._recovery(key, LogName(*place, durability))())
        retention = Retention(segment_bytes_max=DECISION_SEGMENT_BYTES)
        log = self.open(*place, durability, retention=retention)
        unsettled = [
            segment
            for segment in log.segments
            if not log.settled.contains(segment.base, min(segment.stop, log.end))
        ]
        unseal = self._keyring.unsealer.open
        found = read_decisions(self._files, unsettled, log.settled, unseal, logger.warning)
        self._decisions.open(log, found)
        return log

    # Opening

    async def recover(self, logs: Iterable[LogName]) -> None:
        """Recover logs in threads (see ports.TopicStore). Raises StorageError."""
        named = ((log_key(*log[:4]), log) for log in logs)
        ends = [
            self._recoveries.begin(key, self._recovery(key, log))
            for key, log in named
            if self._must_recover(key)
        ]
        for end in ends:
            if not end.done():
                await asyncio.wait([end])  # it goes on if who waits is cancelled
        for end in ends:
            end.result()

    def must_recover(self, vhost: str, topic: str, incarnation: str, partition: int) -> bool:
        """Whether a log must be recovered before it is opened (see ports.TopicStore)."""
        return self._must_recover(log_key(vhost, topic, incarnation, partition))

    def _must_recover(self, key: str) -> bool:
        if key not in self._left and not self._marks.knows(key.encode()):
            return False
        return key not in self._recoveries and self._topics / key not in self._logs

    def _recovery(self, key: str, log: LogName) -> Callable[[], Recovered]:
        """Return what recovers a log, in any thread. Raises NewerFormatError."""
        return partial(
            recover,
            self._files,
            self._topics / key,
            self._marks.known(key.encode()),
            has_records=log.has_records,
            flushes=log.durability is Durability.FSYNC,
        )

    def open(
        self,
        vhost: str,
        topic: str,
        incarnation: str,
        partition: int,
        durability: Durability,
        *,
        retention: Retention | None = None,
        has_records: bool = True,
    ) -> PartitionLog:
        """Open a log (see ports.TopicStore). Raises StorageError."""
        if not has_records:
            retention = Retention(segment_bytes_max=SETTLEMENT_SEGMENT_BYTES)
        root = self._transient if durability is Durability.NONE else self._topics
        name = log_key(vhost, topic, incarnation, partition)
        directory = root / name
        if directory in self._logs:
            raise ValueError(f"the log in {directory} is open already")
        key = self._keyring.active(vhost)
        recovered, mark_key = Recovered(), b""
        if durability is not Durability.NONE:
            if self._must_recover(name):
                raise ValueError(f"the log in {directory} was not recovered")
            recovered = self._recoveries.take(name) or recovered
            self._unopened.discard(name)
            self._left.add(name)
            mark_key = name.encode()
            self._marks.forget([mark_key])
        for finding in recovered.findings:
            logger.warning("queue '%s' in vhost '%s': %s", topic, vhost, finding)
        for loss in recovered.losses:
            self._tell_loss(f"queue '{topic}' in vhost '{vhost}'", loss)
        log = PartitionLog(
            self._services,
            directory,
            durability,
            recovered,
            retention=retention,
            data_key=key,
            key=mark_key,
        )
        self._logs[directory] = log
        if self._led_logs is not None and durability is Durability.FSYNC:
            self._led_logs.opened(name, log)
        if self.opened_since is not None:
            self.opened_since[directory] = log.written
        self._tell_outcomes(log)
        self._notes.start()
        if self._retention_timer is None and retention is not None:
            self._check_retention()
        return log

    def exists(self, vhost: str, topic: str, incarnation: str, partition: int) -> bool:
        """Whether a log exists, or should (see ports.TopicStore)."""
        key = log_key(vhost, topic, incarnation, partition)
        return key in self._left or self._marks.tells_of(key.encode())

    @property
    def in_sync_count(self) -> int | None:
        """Number of nodes in sync, if some are not (see ports.TopicStore)."""
        return None if self._led_logs is None else self._led_logs.in_sync_count

    def leave_unopened(self, vhost: str, topic: str, incarnation: str, partition: int) -> bool:
        """Leave a log unopened that holds nothing (see ports.TopicStore). Raises StorageError."""
        key = log_key(vhost, topic, incarnation, partition)
        if key in self._unopened or key in self._recoveries:
            return key in self._unopened
        mark = self._marks.known(key.encode()).mark
        if mark is None:
            return key not in self._left
        if not is_all_settled(self._files, self._topics / key, mark):
            return False
        self._unopened.add(key)
        return True

    async def delete(self, vhost: str, topic: str, incarnation: str, partition: int) -> None:
        """Remove a log that is not open (see ports.TopicStore). Raises StorageError."""
        key = log_key(vhost, topic, incarnation, partition)
        await self._recoveries.drop(key)
        if key in self._left or self._marks.knows(key.encode()):
            self._unopened.discard(key)
            self._log_deleted(self._topics / key, key.encode())

    def note(self, key: bytes, value: bytes) -> None:
        """Queue an entry for the state store, written with the next marks."""
        self._notes.note(key, value)

    # Losses

    def _tell_loss(self, queue: str, loss: LostRange) -> None:
        logger.error("%s: %s", queue, loss)
        self.losses.note(Loss(LossKind.MESSAGES, queue, str(loss), loss.count))

    def _records_lost(self, directory: Path, lost: RangeSet, kept: Sequence[str]) -> None:
        """Record lost records in the ledger; the queue logs them itself."""
        topic, _, _ = directory.parent.name.rpartition("~~")
        what = f"{lost.count} messages are lost (at offset {lost.first} and behind): what stood "
        what += f"there is damaged, and was kept as {', '.join(kept) or 'no file'}"
        subject = f"queue '{unquote(topic)}' in vhost '{unquote(directory.parts[-3])}'"
        self.losses.note(Loss(LossKind.MESSAGES, subject, what, lost.count))

    def use_key_of(self, vhost: str) -> None:
        """Set the current key of a virtual host on its open logs."""
        key = self._keyring.active(vhost)
        name = encode_name(vhost)
        for directory, log in self._logs.items():
            if directory.parent.parent.name == name:
                log.use_key(key)

    def orphans(self) -> list[Path]:
        """Return the directories of kept logs that were not opened, sorted. Raises StorageError.

        Call it once every queue is open. They are not removed: the definitions may be what is
        missing.
        """
        opened = {log.key for log in self._logs.values()}
        keys = [
            key
            for key in list_logs(self._files, self._topics)
            if key.encode() not in opened and key not in self._unopened
        ]
        orphans = sorted(self._topics / key for key in keys)
        if not orphans:  # else one of them may ask for a decision, should its queue come back
            self._decisions.all_open()
        left = {key.encode() for key in (*keys, *self._unopened)}
        self._forget_marks([key for key in self._marks.unopened if key not in left])
        return orphans

    def _forget_marks(self, keys: Collection[bytes]) -> None:
        """Remove the marks of logs that no longer exist."""
        for key, value in self._marks.forget(keys):
            self._notes.note(key, value)

    # Transactions

    def _tell_outcomes(self, log: PartitionLog) -> None:
        """Resolve the parts of transactions that an earlier run has left in a log."""
        for transaction in log.unresolved:
            log.resolve(transaction, committed=self._decisions.asked(transaction))

    def decide(
        self,
        transactions: Mapping[int, Collection[SharedLog]],
        decided: Callable[[Exception | None], None],
    ) -> None:
        """Commit transactions (see ports.TopicStore)."""
        participants = {}
        for transaction, logs in transactions.items():
            count = sum(log.takes_part(transaction) for log in logs)
            if count:
                participants[transaction] = count
        if participants:
            self._decisions.decide(participants, decided)
        else:
            decided(None)

    # Settlements

    def _log_touched(self, directory: Path) -> None:
        self._touched[directory] = None
        if self._settle_timer is None:
            delay = self._limits.settle_flush_interval_ms / 1000
            self._settle_timer = self._loop.call_later(delay, self._write_settlements)

    def _write_settlements(self) -> None:
        self._settle_timer = None
        touched, self._touched = self._touched, {}
        refusals = [
            self._write_settlements_of(self._logs[directory])
            for directory in touched
            if directory in self._logs  # else it was closed meanwhile
        ]
        refusal = next((refusal for refusal in refusals if refusal is not None), None)
        if refusal is not None and not self._refused:
            logger.warning("settlements wait in memory: %s", refusal)
        self._refused = refusal is not None
        if self._to_flush and self._flush_timer is None:
            delay = self._limits.settle_sync_interval_ms / 1000
            self._flush_timer = self._loop.call_later(delay, self._flush_settlements)

    def _write_settlements_of(self, log: PartitionLog) -> StorageError | None:
        try:
            log.write_settlements()
        except StorageError as error:
            self._log_touched(log.directory)
            return error
        self._to_flush[log] = None
        return None

    def _flush_settlements(self) -> None:
        """Flush logs whose settlements were not flushed by an append."""
        self._flush_timer = None
        logs, self._to_flush = self._to_flush, {}
        for log in logs:
            log.flush()

    def _may_compact(self, directory: Path) -> None:
        if directory in self._logs:  # else it is just being opened
            self.compactor.check(self._logs[directory])

    def _check_retention(self) -> None:
        """Check the retention of all logs, and schedule the next check."""
        for log in self._logs.values():
            log.check_retention()
        delay = self._limits.retention_interval_ms / 1000
        self._retention_timer = self._loop.call_later(delay, self._check_retention)

    # Ending

    def _log_closed(self, directory: Path, mark: LogMark | None) -> None:
        """Keep the mark of a closed log in memory; it is written when the node stops."""
        log = self._forget(directory)
        if log is None:
            return
        if mark is not None:
            self._marks.put_back(log.key, mark)
        elif not self._files.exists(directory):
            self._left.discard(log.key.decode())

    def _forget(self, directory: Path) -> PartitionLog | None:
        log = self._logs.pop(directory, None)
        self._touched.pop(directory, None)
        if log is not None:
            self._to_flush.pop(log, None)
            self.compactor.forget(log)
        return log

    def _log_deleted(self, directory: Path, key: bytes) -> None:
        """Move a deleted log's directory away, at once, and remove it in a thread."""
        self._forget(directory)
        removal = self._trash.take(key, directory)
        if self._led_logs is not None and key:
            self._led_logs.deleted(key.decode())
        self._left.discard(key.decode())
        self._forget_marks([key] if key else [])
        if removal is not None:
            self._notes.when_written(removal)

    async def close(self) -> None:
        """Close all logs (see ports.TopicStore). Failures are logged and recovered from later."""
        for timer in (self._settle_timer, self._flush_timer, self._retention_timer):
            if timer is not None:
                timer.cancel()
        self._notes.stop()
        self.compactor.stop()
        await self._recoveries.close()
        others = [log for log in self._logs.values() if log is not self._decision_log]
        for log in [*others, self._decision_log]:  # the others' outcomes are safe first
            try:
                await log.close()
            except StorageError as error:
                logger.warning("%s; its next start will take a little longer", error)
        self._stop_threads()
        try:
            self._notes.finish(self._marks.closing())
        except StorageError as error:
            logger.warning("%s; the next start reads all logs", error)

    def _stop_threads(self) -> None:
        self.compactor.close()
        if self._owns_threads:
            self._threads.close()
        if self._own_lock is not None:
            self._own_lock.release()

    def logs(self) -> Iterable[PartitionLog]:
        """Return all open logs."""
        return self._logs.values()

    def begin_snapshot(self) -> dict[Path, tuple[Segment, int] | None]:
        """Return last segment and written bytes of each open log, by directory.

        Until `end_snapshot`, `opened_since` says the same of each log as it was when it was opened.
        """
        self.opened_since = {}
        return {directory: log.written for directory, log in self._logs.items()}

    def end_snapshot(self) -> None:
        """Note no more which logs are opened."""
        self.opened_since = None

    @property
    def directory(self) -> Path:
        """Directory of the logs that are kept."""
        return self._topics
