from collections.abc import Iterable
from typing import Any, TypeAlias

from leveret.ports.records import BatchBuilder

KEY: str
ROUND_ROBIN: str
RANDOM: str
KEY_HEADER: str

# What a route leads to.
RecordTarget: TypeAlias = BatchBuilder | Partitioner

def hash_key(key: bytes) -> int: ...
def place_of(builder: BatchBuilder) -> object: ...

class Partitioner:
    owner: Any
    @property
    def builders(self) -> tuple[BatchBuilder, ...]: ...
    @property
    def layout(self) -> int: ...
    @property
    def by(self) -> str: ...
    def __init__(self, owner: Any, by: str = ..., seed: int = 1) -> None: ...
    def set_builders(self, builders: Iterable[BatchBuilder]) -> None: ...
    def for_message(
        self, flags: int, routing_key: bytes, header: bytes, number: int | None = None
    ) -> BatchBuilder: ...
