"""Runs a replica: performs its effects with this node's disk, links and coordinator.

What it decides stands in `leveret.replication`; nothing is decided here but when to try again. Used
on the event loop.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

from leveret.cluster.refresh import RETRY_SECONDS, Refresh
from leveret.cluster.session_tasks import SessionTasks
from leveret.errors import CorruptBatchError, StorageError
from leveret.ports.coordinator import WriteOutcome
from leveret.replication import effects as do
from leveret.replication.attaching import compare
from leveret.replication.codec import MalformedMessageError
from leveret.replication.messages import Append, Copy, Message, Remove
from leveret.replication.replica import Role

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from leveret.cluster.shard_entries import ShardEntries
    from leveret.ports.replication import LogEnd, LogPlace, RawBatches
    from leveret.replication.attaching import Comparison
    from leveret.replication.effects import Effect
    from leveret.replication.replica import Replica
    from leveret.replication.shard import ShardEntry
    from leveret.storage.led_logs import LedLogs
    from leveret.storage.replica_store import ReplicaStore

__all__ = ["Reign", "ReplicaRunner", "RunnerLinks"]

logger = logging.getLogger("leveret.cluster")

REPEAT_MS = 60_000  # until a failure is logged again that goes on: a full disk
TOLD_MAX = 100


class Reign(Protocol):
    """Logs of the shard that this node leads, opened for clients."""

    logs: LedLogs

    async def open(self) -> None:
        """Open the logs; what is written to them may be committed meanwhile.

        Raises StorageError.
        """
        ...

    def set_in_sync_counts(self, in_sync: int, ever_in_sync: int) -> None:
        """Commit nothing of logs that need more nodes in sync (see effects.SetInSyncCounts)."""
        ...

    def end(self, reason: str) -> None:
        """Serve nobody any more, and commit nothing."""
        ...


class RunnerLinks(Protocol):
    """Links of this node with others, over which messages of one shard travel."""

    def send(self, node: int, message: Message) -> None:
        """Send a message over the present link with a node; forget it if there is none."""
        ...

    def connect(self, node: int | None) -> None:
        """Keep a link open to a node, and to no other; try again after a pause."""
        ...

    def disconnect(self, node: int) -> None:
        """Close the present link to or from a node, which is told as the end of any link."""
        ...


class ReplicaRunner:
    """Runs `replica`, of which the highest epoch is kept by `keep_epoch`, in any thread.

    To lead, it has `lead` begin a reign for an epoch, and is the `LogEvents` of its logs. `over` is
    set once the replica does no more, for a `reason`.
    """

    def __init__(
        self,
        replica: Replica,
        files: ReplicaStore,
        links: RunnerLinks,
        entries: ShardEntries,
        *,
        keep_epoch: Callable[[int], None],
        lead: Callable[[int], Reign],
        now_ms: Callable[[], int],
        live: Callable[[], Mapping[int, int]],
    ) -> None:
        self._replica = replica
        self._files = files
        self._links = links
        self._entries = entries
        self._keep_epoch = keep_epoch
        self._lead = lead
        self._now_ms = now_ms
        self._live = live
        self._reign: Reign | None = None
        self._effects: deque[Effect] = deque()
        self._is_performing = False
        self._tasks = SessionTasks("a replica", partial(self.failed, "an error of the program"))
        self._refresh = Refresh(self._read)
        self._last_outcome = WriteOutcome.DONE
        self._told: dict[str, int] = {}  # failures, and when each may be logged again
        self.over = asyncio.Event()
        self.reason = ""
        self._performers: dict[type, Callable[[Any], None]] = {
            do.Send: self._send,
            do.Connect: self._connect,
            do.Disconnect: self._disconnect,
            do.KeepEpoch: self._keep_epoch_of,
            do.DescribeLogs: self._describe_logs,
            do.CutLogs: self._cut_logs,
            do.CarryOut: self._carry_out,
            do.FlushLogs: self._flush_logs,
            do.CompareLogs: self._compare_logs,
            do.ReadLog: self._read_log,
            do.OpenLogs: self._open_logs,
            do.Replicated: self._replicated,
            do.SetInSyncCounts: self._set_in_sync_counts,
            do.ReadEntry: self._read_entry,
            do.WriteEntry: self._write_entry,
            do.EndReign: self._end_reign,
        }

    @property
    def replica(self) -> Replica:
        """The replica that is run."""
        return self._replica

    # -- events

    def look(self) -> None:
        """Read the shard's entry, which may have changed."""
        self._refresh.ask()

    def learned(self, entry: ShardEntry) -> None:
        """Pass on the shard's entry, which was read."""
        self._do(self._replica.learned(entry, self._now_ms()))

    def tick(self) -> None:
        """Have done what is due; call it some times in a second."""
        flush_ms = self._files.oldest_flush_ms
        self._do(self._replica.tick(self._live(), self._now_ms(), flush_ms))

    def connected(self, node: int) -> None:
        """Pass on that a link to the leader was opened."""
        self._do(self._replica.connected(node))

    def disconnected(self, node: int) -> None:
        """Pass on that a link has ended."""
        self._do(self._replica.disconnected(node, self._now_ms()))

    def received(self, node: int, message: Message) -> None:
        """Pass on a message."""
        self._do(self._replica.received(node, message))

    def wrote(self, log: str, before: LogEnd, end: LogEnd) -> None:
        """Pass on that a log has a new end (see ports.LogEvents)."""
        self._do(self._replica.wrote(log, before, end, self._now_ms()))

    def removed(self, log: str, base: int, revision: int) -> None:
        """Pass on that a file was removed (see ports.LogEvents)."""
        self._do(self._replica.removed(log, base, revision, self._now_ms()))

    def replaced(self, log: str, file: tuple[int, int], by: int, following: LogPlace) -> None:
        """Pass on that a file was compacted (see ports.LogEvents)."""
        self._do(self._replica.replaced(log, file, by, following, self._now_ms()))

    def dropped(self, log: str) -> None:
        """Pass on that a log was deleted (see ports.LogEvents)."""
        self._do(self._replica.dropped(log, self._now_ms()))

    def failed(self, reason: str) -> None:
        """Pass on that this node's disk has failed (see ports.LogEvents)."""
        now_ms = self._now_ms()
        if not self.over.is_set() and now_ms >= self._told.get(reason, now_ms):
            if len(self._told) >= TOLD_MAX:
                self._told.clear()
            self._told[reason] = now_ms + REPEAT_MS
            logger.error("%s", reason)
        self._do(self._replica.failed(reason))

    # -- effects

    def _do(self, effects: Iterable[Effect]) -> None:
        """Perform effects, behind those that are being performed."""
        self._effects.extend(effects)
        if self._is_performing:
            return
        self._is_performing = True
        try:
            while self._effects:
                effect = self._effects.popleft()
                self._performers[type(effect)](effect)
        finally:
            self._is_performing = False
        if self._replica.role is Role.OVER:
            self.over.set()

    async def close(self) -> None:
        """End what is under way, and close the files.

        Those of a reign were left to it before (see ReplicaStore.leave).
        """
        self.over.set()
        await self._tasks.close()
        await self._refresh.close()
        await self._files.close()

    # -- links

    def _send(self, effect: do.Send) -> None:
        self._links.send(effect.node, effect.message)

    def _connect(self, effect: do.Connect) -> None:
        self._links.connect(effect.node)

    def _disconnect(self, effect: do.Disconnect) -> None:
        self._links.disconnect(effect.node)

    # -- the disk

    def _keep_epoch_of(self, effect: do.KeepEpoch) -> None:
        self._tasks.start(self._keep(effect.epoch))

    async def _keep(self, epoch: int) -> None:
        try:
            await asyncio.to_thread(self._keep_epoch, epoch)
        except StorageError as error:
            self.failed(str(error))
        else:
            self._do(self._replica.kept_epoch(epoch))

    def _describe_logs(self, effect: do.DescribeLogs) -> None:
        self._tasks.start(self._describe(effect))

    async def _describe(self, effect: do.DescribeLogs) -> None:
        try:
            logs = await self._files.describe(keeps=effect.keeps)
        except CorruptBatchError as error:
            logger.warning(
                "%s; this node copies the log anew as soon as the others have taken it out of the "
                "in-sync set",
                error,
            )
            self._do(self._replica.damaged(str(error)))
        except StorageError as error:
            self.failed(str(error))
        else:
            self._do(self._replica.described(effect.number, tuple(logs.values())))

    def _cut_logs(self, effect: do.CutLogs) -> None:
        self._tasks.start(self._cut(effect))

    async def _cut(self, effect: do.CutLogs) -> None:
        try:
            await self._files.cut(effect.cuts)
        except StorageError as error:
            self.failed(str(error))
        else:
            self._do(self._replica.cut(effect.number))

    def _carry_out(self, effect: do.CarryOut) -> None:
        files = self._files
        try:
            for operation in effect.operations:
                if isinstance(operation, Append):
                    files.append(*operation)
                elif isinstance(operation, Copy):
                    log, place, data, is_last = operation
                    files.copy(log, place, data, is_last=is_last)
                elif isinstance(operation, Remove):
                    files.remove(*operation)
                else:
                    files.drop(operation.log)
        except StorageError as error:
            self.failed(str(error))

    def _flush_logs(self, effect: do.FlushLogs) -> None:
        self._files.flush(partial(self._flushed, effect.number))

    def _flushed(self, number: int, error: StorageError | None) -> None:
        if error is not None:
            self.failed(str(error))
        else:
            self._do(self._replica.flushed(number))

    # -- what followers get

    def _compare_logs(self, effect: do.CompareLogs) -> None:
        self._tasks.start(self._compare(effect))

    async def _compare(self, effect: do.CompareLogs) -> None:
        try:
            if self._reign is None:
                ours, has_last = self._files.described, self._files.has_last
            else:
                logs = self._reign.logs
                ours, has_last = await logs.describe(), logs.has_last
            work = partial(compare, ours, effect.logs, keeps=effect.keeps, has_last=has_last)
            found: Comparison = await asyncio.to_thread(work)
        except (StorageError, MalformedMessageError) as error:
            logger.warning("node %d cannot attach: %s", effect.follower, error)
            self._links.disconnect(effect.follower)
        else:
            self._do(self._replica.compared(effect.follower, effect.number, found, self._now_ms()))

    def _read_log(self, effect: do.ReadLog) -> None:
        raw = None
        if self._reign is not None:
            try:
                raw = self._reign.logs.read_raw(
                    effect.log, effect.place, effect.offset, effect.bytes_max
                )
            except StorageError as error:
                self._has_read(effect, None, error)
                return
        if raw is not None:
            self._has_read(effect, raw)
            return
        self._do(self._replica.read_waits(effect.follower, effect.number))
        self._tasks.start(self._fetch(effect))

    async def _fetch(self, effect: do.ReadLog) -> None:
        wanted = effect.log, effect.place, effect.offset, effect.bytes_max
        try:
            if self._reign is None:
                raw = await self._files.read(*wanted)
            else:
                raw = await self._reign.logs.fetch_raw(*wanted)
        except StorageError as error:
            self._has_read(effect, None, error)
        else:
            self._has_read(effect, raw)

    def _has_read(
        self, effect: do.ReadLog, raw: RawBatches | None, error: StorageError | None = None
    ) -> None:
        if error is not None:
            logger.warning("node %d attaches anew: %s", effect.follower, error)
        self._do(self._replica.read(effect.follower, effect.number, raw))

    # -- a reign

    def _open_logs(self, effect: do.OpenLogs) -> None:
        self._tasks.start(self._open(effect.epoch))

    async def _open(self, epoch: int) -> None:
        try:
            await self._files.leave()
            if self.reason:
                return  # it has ended meanwhile
            self._reign = self._lead(epoch)
            await self._reign.open()
        except StorageError as error:
            self.failed(str(error))
        else:
            self._do(self._replica.opened())

    def _replicated(self, effect: do.Replicated) -> None:
        if self._reign is not None:
            self._reign.logs.replicated(effect.log, effect.place, effect.offset)

    def _set_in_sync_counts(self, effect: do.SetInSyncCounts) -> None:
        if self._reign is not None:
            self._reign.set_in_sync_counts(*effect)

    def _end_reign(self, effect: do.EndReign) -> None:
        self.end(effect.reason)

    def end(self, reason: str) -> None:
        """Serve nobody any more: at once, and whatever the replica does."""
        self.reason = self.reason or reason
        if self._reign is not None:
            self._reign.end(reason)

    # -- the coordinator

    def _read_entry(self, effect: do.ReadEntry) -> None:  # noqa: ARG002
        self.look()

    async def _read(self) -> None:
        entry = await self._entries.read()
        if entry is not None:
            self.learned(entry)

    def _write_entry(self, effect: do.WriteEntry) -> None:
        self._tasks.start(self._write(effect))

    async def _write(self, effect: do.WriteEntry) -> None:
        if self._last_outcome is not WriteOutcome.DONE:
            await asyncio.sleep(RETRY_SECONDS)
        self._last_outcome = await self._entries.write(effect.entry, effect.members)
        self._do(self._replica.written(self._last_outcome))
