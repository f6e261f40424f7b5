from collections.abc import Sequence

from leveret.errors import StorageError
from leveret.ports.ranges import RangeSet
from leveret.ports.records import Batch, BatchBuilder
from leveret.storage.checkpoint import TransactionPart
from leveret.storage.commit import FlushFigures
from leveret.storage.reader import LogReader
from leveret.storage.reclaimer import Reclaimer
from leveret.storage.segment import Segment
from leveret.storage.segments import Segments
from leveret.storage.tail import LogTail, TailCache
from leveret.storage.transaction_participants import TransactionParticipants

LOOP_FLUSH_BYTES_MAX: int
MERGED_RANGES_MIN: int
REWRITE_BYTES_MAX: int

class UnflushedBatch:
    @property
    def batch(self) -> Batch | None: ...
    @property
    def segment(self) -> Segment: ...
    @property
    def position(self) -> int: ...
    @property
    def stop(self) -> int: ...

class WrittenLog:
    builder: BatchBuilder
    end: int
    flushed: int
    committed: int
    appended_bytes: int
    gathered_bytes_max: int
    batch_bytes_max: int
    settled: RangeSet
    is_flushing: bool
    _flushes_once_sent: bool
    _durable: int
    _replicated: int
    _keeps: bool
    _waits_for_copies: bool
    _refusal: StorageError | None
    _flushes: bool
    _segments: Segments
    _reader: LogReader
    _cache: TailCache
    _tail: LogTail
    _figures: FlushFigures
    _parts: TransactionParticipants
    _reclaimer: Reclaimer
    _unresolved: dict[int, TransactionPart]
    _unflushed: list[UnflushedBatch]
    _unflushed_bytes: int
    _stated: RangeSet
    _pending: RangeSet
    _touched: bool
    @property
    def acknowledged(self) -> int: ...
    def append(self, may_block: bool = ...) -> int: ...
    def _may_flush_on_loop(self) -> bool: ...
    def _flush_on_loop(self) -> int: ...
    def _commit(self) -> bool: ...
    def _append_pending(self, transaction: int, records: BatchBuilder) -> None: ...
    def _rewrite(self, batch: Batch) -> None: ...
    def _forget_unflushed(self, count: int) -> None: ...
    def read(self, offset: int, bytes_max: int) -> list[Batch] | None: ...
    def peek(self, offset: int) -> Batch | None: ...
    def settle(self, ranges: Sequence[tuple[int, int]]) -> None: ...
