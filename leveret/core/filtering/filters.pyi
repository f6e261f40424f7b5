from collections.abc import Iterable, Sequence

from leveret.features.sql import Condition as ParsedSql
from leveret.ports.ranges import RangeSet
from leveret.ports.records import Batch

JUDGEMENTS_MAX: int

class Condition: ...

class TagCondition(Condition):
    def __init__(self, tags: Sequence[bytes], program: Sequence[int]) -> None: ...

class SqlCondition(Condition):
    def __init__(
        self, condition: ParsedSql, needed: Iterable[str], texts: Iterable[tuple[str, str]]
    ) -> None: ...

class RecordFilter:
    @property
    def judgements(self) -> int: ...
    def __init__(
        self,
        tags: TagCondition | None,
        other: Condition | None = None,
        sql: SqlCondition | None = None,
    ) -> None: ...
    def run(self, batches: list[Batch], first: int, stop: int) -> tuple[int, int]: ...
    def find(
        self, batches: list[Batch], ready: RangeSet, first: int, stop: int, limit: int
    ) -> tuple[list[tuple[int, int]], int]: ...
    def matches(self, header: bytes) -> bool: ...
