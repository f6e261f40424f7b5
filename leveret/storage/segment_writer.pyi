from leveret.ports.records import Batch
from leveret.ports.replication import LogSink
from leveret.storage.encryption import Sealer
from leveret.storage.files import FileSystem
from leveret.storage.index import SparseIndex
from leveret.storage.segment import Segment

GROWTH_BYTES: int
UNLOCKED_BYTES_MIN: int

class SegmentWriter:
    _files: FileSystem
    sink: LogSink | None
    items: list[Segment]
    dirty: list[Segment]
    _epoch: int
    position: int
    latest_ms: int
    _file_bytes: int
    _flushes: bool
    _roll_at: int
    _index: SparseIndex
    _sealer: Sealer | None
    def __init__(self, files: FileSystem, epoch: int) -> None: ...
    def write(self, batch: Batch, end: int) -> int: ...
    def take_dirty(self) -> list[Segment]: ...
    def unpin(self, segment: Segment) -> None: ...
