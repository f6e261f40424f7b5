from collections.abc import Iterator
from typing import Any, TypeAlias

from leveret.amqp.frames import ChannelSlot
from leveret.amqp.unacked import Unacked
from leveret.core.queues.open_queue import OpenQueue
from leveret.core.settings.discard_reasons import Reason
from leveret.core.vhost import Vhost
from leveret.ports.counters import DeliveryStatistics
from leveret.ports.definitions import Arguments

SLICE_RUNS: int

# And the offsets [first, stop).
Holding: TypeAlias = tuple[LeaseHolder, int, int]

class LeaseHolder:
    arguments: Arguments
    visibility_timeout_ms: int | None
    @property
    def queue(self) -> OpenQueue: ...
    @property
    def counted(self) -> DeliveryStatistics: ...
    def __init__(self, queue: OpenQueue, counted: DeliveryStatistics) -> None: ...
    def release(self, count: int) -> None: ...
    def wake(self) -> None: ...

class Settlements:
    connection: Any
    vhost: Vhost
    slot: ChannelSlot
    unacked: Unacked[LeaseHolder]
    prefetch: int
    in_flight: int
    alive: bool
    consumers: dict[str, Any]
    transaction: Any
    suspended: dict[LeaseHolder, Any]
    def collect_settles(self) -> None: ...
    def settle(self, kind: int, first: int, last: int, multiple: bool) -> int | None: ...
    def settling(self, kind: int, last: int, cause: Reason = ...) -> Iterator[None]: ...
    def apply(self, kind: int, held: list[Holding], cause: Reason = ...) -> None: ...
    def release_credit(self, held: list[Holding]) -> None: ...
    def wake_consumers(self) -> None: ...

def release_held(held: list[Holding], *, acknowledged: bool) -> dict[LeaseHolder, int]: ...
