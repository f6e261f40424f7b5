from leveret.ports.records import Batch
from leveret.storage.encryption import Sealer
from leveret.storage.files import FileSystem
from leveret.storage.index import SparseIndex
from leveret.storage.segment import Segment

UNLOCKED_BYTES_MIN: int

class SegmentWriter:
    _files: FileSystem
    items: list[Segment]
    dirty: list[Segment]
    position: int
    latest_ms: int
    _file_bytes: int
    _epoch: int
    _flushes: bool
    _roll_at: int
    _index: SparseIndex
    _sealer: Sealer | None
    def __init__(self, files: FileSystem, epoch: int) -> None: ...
    def write(self, batch: Batch, end: int) -> int: ...
    def take_dirty(self) -> list[Segment]: ...
    def unpin(self, segment: Segment) -> None: ...
