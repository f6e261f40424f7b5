from collections.abc import Iterable

from leveret.features.filters.filters import FilterCondition
from leveret.ports.definitions import Arguments

STREAM_FILTER: str
MATCH_UNFILTERED: str

class StreamValues(FilterCondition):
    def __init__(self, values: Iterable[bytes], unfiltered: bool) -> None: ...

def stream_values(arguments: Arguments) -> StreamValues | None: ...
