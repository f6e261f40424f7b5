from collections.abc import Iterable

from leveret.ports.definitions import Arguments
from leveret.ports.records import Batch

STREAM_FILTER: str
MATCH_UNFILTERED: str

class RecordFilter:
    def __init__(self, values: Iterable[bytes], unfiltered: bool) -> None: ...
    def run(self, batches: list[Batch], first: int, stop: int) -> tuple[int, int]: ...

def record_filter(arguments: Arguments) -> RecordFilter | None: ...
