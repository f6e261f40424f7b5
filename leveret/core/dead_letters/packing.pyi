from collections.abc import Callable, Iterable

from leveret.core.dead_letters.publish import DeadLetterPublish
from leveret.ports.records import Batch, BatchBuilder

LETTERS_MAX: int

class Letter:
    def __init__(
        self, exchange: bytes, routing_key: bytes, headers: bytes, builders: Iterable[BatchBuilder]
    ) -> None: ...
    @property
    def address(self) -> bytes: ...
    @property
    def headers(self) -> bytes: ...
    @property
    def builders(self) -> tuple[BatchBuilder, ...]: ...

class LetterWriter:
    def __init__(
        self,
        compose: Callable[[bytes, bytes, bytes | None, bytes | None, bool], Letter],
        now: int,
        route: Callable[[Letter, int, bytes, bytes], tuple[BatchBuilder, ...]] | None = None,
        publish: DeadLetterPublish | None = None,
    ) -> None: ...
    @property
    def touched(self) -> set[BatchBuilder]: ...
    @property
    def unrouted(self) -> list[tuple[int, int]]: ...
    def write(self, batch: Batch, first: int, stop: int) -> None: ...
