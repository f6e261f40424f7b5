from collections.abc import Callable, Iterable

from leveret.features.dead_letter.publish import DeadLetterPublish
from leveret.ports.partitioner import RecordTarget
from leveret.ports.ranges import RangeSet
from leveret.ports.records import Batch, BatchBuilder

TEMPLATES_MAX: int

class DeadLetterTemplate:
    def __init__(
        self, exchange: bytes, routing_key: bytes, headers: bytes, builders: Iterable[RecordTarget]
    ) -> None: ...
    @property
    def address(self) -> bytes: ...
    @property
    def headers(self) -> bytes: ...
    @property
    def builders(self) -> tuple[RecordTarget, ...]: ...

class DeadLetterWriter:
    def __init__(
        self,
        compose: Callable[[bytes, bytes, bytes | None, bytes | None, bool], DeadLetterTemplate],
        now: int,
        route: Callable[[DeadLetterTemplate, int, bytes, bytes], tuple[RecordTarget, ...]]
        | None = None,
        publish: DeadLetterPublish | None = None,
    ) -> None: ...
    @property
    def touched(self) -> set[BatchBuilder]: ...
    @property
    def given(self) -> dict[BatchBuilder, RangeSet]: ...
    @property
    def unrouted(self) -> list[tuple[int, int]]: ...
    def write(self, batch: Batch, first: int, stop: int) -> None: ...
