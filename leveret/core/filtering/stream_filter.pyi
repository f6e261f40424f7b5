from collections.abc import Iterable

from leveret.core.filtering.filters import Condition
from leveret.ports.definitions import Arguments

STREAM_FILTER: str
MATCH_UNFILTERED: str

class StreamValues(Condition):
    def __init__(self, values: Iterable[bytes], unfiltered: bool) -> None: ...

def stream_values(arguments: Arguments) -> StreamValues | None: ...
