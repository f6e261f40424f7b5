"""A TopicLog and a TopicStore in memory: commits at once, or when a test says so."""

from __future__ import annotations

from typing import TYPE_CHECKING

from leveret.errors import CorruptBatchError, NotEnoughCopiesError
from leveret.ports import Damage, Durability, LogFile, Retention
from leveret.ports.ranges import RangeSet
from leveret.ports.records import HEADER_BYTES, Batch, BatchBuilder
from leveret.ports.returns import Returns
from tests.support.gate import Gate

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

    from leveret.ports import LogName


class MemoryTopicLog:
    def __init__(self, durability: Durability = Durability.OS) -> None:
        self.builder = BatchBuilder()
        self.first = 0
        self.end = 0
        self.committed = 0
        self.durable = 0
        self.parts: dict[int, tuple[int, int, list[tuple[int, int]], bool]] = {}
        self._preparing: dict[int, Callable[[Exception | None], None]] = {}
        self.settled = RangeSet()
        self.undone = RangeSet()
        self.erased = RangeSet()
        self.retained_from: int | None = None
        self.unclean = False
        self.appended_bytes = 0
        self.redelivered_stop = 0
        self.returns = Returns()
        self.retention: Retention | None = None
        self.retention_waits_at: Callable[[], int | None] = lambda: None
        self.kept_from: int | None = None
        self.removed = RangeSet()
        self.deleted = False
        self.append_error: Exception | None = None
        self._refusal: NotEnoughCopiesError | None = None
        self.durability = durability
        self.batches: list[Batch] = []
        self.at_hand = True  # whether `read` need not wait for a device
        self.fetch_error: Exception | None = None
        self.damaged: set[int] = set()  # base offsets of batches that cannot be read
        self.kept: set[int] = set()  # base offsets of the damaged batches that were copied
        self.aside = Gate(is_open=True)  # closed while `set_aside` shall take its time
        self._forget_callbacks()

    def _forget_callbacks(self) -> None:
        self._on_commit: Callable[[], None] = lambda: None
        self._on_failure: Callable[[Exception], None] = lambda error: None
        self._on_remove: Callable[[Sequence[tuple[int, int]]], None] = lambda ranges: None

    def on_commit(self, callback: Callable[[], None]) -> None:
        self._on_commit = callback

    def keep_from(self, reader: str, offset: int | None) -> None:
        self.kept_from = offset

    def on_remove(self, callback: Callable[[Sequence[tuple[int, int]]], None]) -> None:
        self._on_remove = callback

    def remove(self, first: int, stop: int) -> None:
        """Play the retention that has removed records."""
        self.batches = [batch for batch in self.batches if not first <= batch.base_offset < stop]
        self.removed.add(first, stop)
        self._on_remove([(first, stop)])

    def require_copies(self, count: int, *, waits: bool = True) -> None:
        self.copies_min = count

    @property
    def is_refusing(self) -> bool:
        return self._refusal is not None

    @property
    def acknowledged(self) -> int:
        return self.committed

    def on_failure(self, callback: Callable[[Exception], None]) -> None:
        self._on_failure = callback

    def list_files(self) -> list[LogFile]:
        return [LogFile(self.first, self.end, self.appended_bytes, None, False)]

    def append(self, may_block: bool = False) -> int:
        self._check_writable(self.builder)
        base = self.end
        batch = self.builder.seal(base)
        self.appended_bytes += batch.size - HEADER_BYTES
        self.batches.append(batch)
        self.end = batch.stop_offset
        if self.durability is not Durability.FSYNC:
            self.durable = self.end
            if not self.parts:
                self.committed = self.end
        return base

    def _check_writable(self, records: BatchBuilder) -> None:
        error = self._refusal or self.append_error
        if error is not None:
            records.clear()
            raise error

    def prepare(
        self,
        transaction: int,
        records: BatchBuilder,
        ranges: Sequence[tuple[int, int]],
        prepared: Callable[[Exception | None], None],
        *,
        erases: bool = False,
    ) -> None:
        self._check_writable(records)
        first = self.end
        if records.count:
            batch = records.seal(first)
            batch.set_pending(transaction)
            self.batches.append(batch)
            self.end = batch.stop_offset
        self.parts[transaction] = (first, self.end, list(ranges), erases)
        if self.durability is Durability.FSYNC:
            self._preparing[transaction] = prepared
        else:
            self.durable = self.end
            prepared(None)

    def resolve(self, transaction: int, *, committed: bool) -> None:
        if transaction not in self.parts:
            return
        if not committed and transaction in self._preparing:
            self._preparing[transaction] = lambda _error: self.resolve(transaction, committed=False)
            return
        first, stop, ranges, erases = self.parts.pop(transaction)
        if not committed:
            ranges = [(first, stop)] if first < stop else []
            self.undone.add_all(ranges)
        if committed and erases:
            self.erase(ranges)
        else:
            self.settle(ranges)
        self._advance()

    def takes_part(self, transaction: int) -> bool:
        return transaction in self.parts and self.durability is not Durability.NONE

    def _advance(self) -> None:
        firsts = [first for first, stop, *_ in self.parts.values() if first < stop]
        committed = min([self.durable, *firsts])
        if committed != self.committed:
            self.committed = committed
            self._on_commit()

    def commit(self) -> None:
        """Play the disk that has flushed; too few copies commit nothing."""
        if self.is_refusing:
            return
        self.durable = self.end
        preparing, self._preparing = self._preparing, {}
        for prepared in preparing.values():
            prepared(None)
        self._advance()

    def fail(self, error: Exception) -> None:
        """Play the disk that could not flush."""
        self.batches = [batch for batch in self.batches if batch.stop_offset <= self.durable]
        self.end = self.durable
        preparing, self._preparing = self._preparing, {}
        for transaction, prepared in preparing.items():
            del self.parts[transaction]
            prepared(error)
        self._on_failure(error)

    def refuse(self, error: NotEnoughCopiesError | None) -> None:
        """Play the nodes that are in sync no more, or again."""
        self._refusal = error
        if error is None:
            return
        preparing = self._preparing
        self._preparing = dict.fromkeys(preparing, lambda _error: None)
        for prepared in preparing.values():
            prepared(error)
        self._on_failure(error)

    def settle(self, ranges: Sequence[tuple[int, int]]) -> None:
        for first, stop in ranges:
            self.settled.add(first, stop)

    def erase(self, ranges: Sequence[tuple[int, int]]) -> None:
        self.erased.add_all(list(ranges))
        self.settle(ranges)
        self._on_remove(ranges)

    def restate(self, settled: RangeSet) -> None:
        self.settled.clear()
        self.settled.add_all(list(settled))
        self.returns.clear()

    def note_returns(self, ranges: Sequence[tuple[int, int]]) -> None:
        pass

    def read(self, offset: int, bytes_max: int) -> list[Batch] | None:
        return self._find(offset, bytes_max) if self.at_hand else None

    def peek(self, offset: int) -> Batch | None:
        found = self.read(offset, 1)
        return found[0] if found else None

    @property
    def held_bytes(self) -> int:
        return sum(batch.size for batch in self.batches) + self.builder.held_bytes

    def _find(self, offset: int, bytes_max: int) -> list[Batch]:
        found: list[Batch] = []
        size = 0
        for batch in self.batches:
            if batch.stop_offset > offset and batch.base_offset < self.committed:
                if batch.base_offset in self.damaged:
                    if not found:
                        raise CorruptBatchError(f"damage at offset {batch.base_offset}")
                    break
                found.append(batch)
                size += batch.size
                if size >= bytes_max:
                    break
        return found

    async def fetch(self, offset: int, bytes_max: int) -> list[Batch]:
        if self.fetch_error is not None:
            raise self.fetch_error
        return self._find(offset, bytes_max)

    async def offset_at(self, time_ms: int) -> int:
        for batch in self.batches:
            if batch.last_time >= time_ms:
                return batch.offset_at(time_ms)
        return self.end

    async def set_aside(self, offset: int) -> Damage:
        await self.aside
        unreadable = RangeSet([(0, self.committed)])
        for batch in self.batches:
            if batch.base_offset not in self.damaged:
                unreadable.remove(batch.base_offset, batch.stop_offset)
        lost = unreadable.copy()
        for first, stop in self.settled:
            lost.remove(first, stop)
        is_new = not self.kept >= self.damaged
        self.kept |= self.damaged
        kept = [f"{base}.damaged-1" for base in sorted(self.damaged)]
        return Damage(lost, kept, unreadable, is_new)

    def take_over(self, left: MemoryTopicLog) -> None:
        """Be what an earlier run has left."""
        self.fetch_error = left.fetch_error
        self.batches = left.batches
        self.end = self.committed = self.durable = left.committed
        self.settled = left.settled.copy()
        self.undone = left.undone.copy()
        self.erased = left.erased.copy()

    async def settlements_safe(self) -> None:
        pass

    async def close(self) -> None:
        pass

    async def delete(self) -> None:
        self.deleted = True
        self._forget_callbacks()  # who has the log refers to nobody by it


KEPT_TOPICS = {"leveret.delayed"}  # whose logs another run on the same store finds as they were


class MemoryTopicStore:
    def __init__(self) -> None:
        self.logs: dict[tuple[str, str] | tuple[str, str, int], MemoryTopicLog] = {}
        self.decided: list[int] = []
        self.in_sync_count: int | None = None
        self.decide_error: Exception | None = None
        self.unrecovered: set[tuple[str, str] | tuple[str, str, int]] = set()
        self.recovering = Gate(is_open=True)  # closed while recoveries shall take their time
        self.recover_error: Exception | None = None

    def end_run(self) -> None:
        """Have all logs recovered before they are opened again."""
        self.unrecovered |= {place for place, log in self.logs.items() if not log.deleted}

    async def recover(self, logs: Iterable[LogName]) -> None:
        wanted = {_place(log.vhost, log.topic, log.partition) for log in logs} & self.unrecovered
        if wanted:
            await self.recovering
            if self.recover_error is not None:
                raise self.recover_error
            self.unrecovered -= wanted

    def must_recover(self, vhost: str, topic: str, incarnation: str, partition: int) -> bool:
        return _place(vhost, topic, partition) in self.unrecovered

    async def delete(self, vhost: str, topic: str, incarnation: str, partition: int) -> None:
        place = _place(vhost, topic, partition)
        if place in self.unrecovered:
            await self.recovering
            self.unrecovered.discard(place)
        if place in self.logs:
            await self.logs[place].delete()

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
    ) -> MemoryTopicLog:
        place = _place(vhost, topic, partition)
        if place in self.unrecovered:
            raise ValueError(f"the log of {place} was not recovered")
        left = self.logs.get(place)
        log = self.logs[place] = MemoryTopicLog(durability)
        if left is not None and not left.deleted and topic in KEPT_TOPICS:
            log.take_over(left)
        log.retention = retention
        return log

    def exists(self, vhost: str, topic: str, incarnation: str, partition: int) -> bool:
        log = self.logs.get(_place(vhost, topic, partition))
        return log is not None and not log.deleted

    def leave_unopened(self, vhost: str, topic: str, incarnation: str, partition: int) -> bool:
        return False

    def decide(
        self,
        transactions: Mapping[int, Collection[MemoryTopicLog]],
        decided: Callable[[Exception | None], None],
    ) -> None:
        if self.decide_error is None:
            self.decided += transactions
        decided(self.decide_error)

    async def close(self) -> None:
        pass


def _place(vhost: str, topic: str, partition: int) -> tuple[str, str] | tuple[str, str, int]:
    """Where a log is found: most have one partition, which need not be said."""
    return (vhost, topic, partition) if partition else (vhost, topic)
