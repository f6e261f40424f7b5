from collections.abc import Sequence
from typing import Any, Final

NAMES: Final[tuple[str, ...]]
MESSAGE_SIZE_BOUNDS: Final[tuple[int, ...]]
PUBLISH: Final[int]
PUBLISH_IN: Final[int]
PUBLISH_OUT: Final[int]
CONFIRM: Final[int]
RETURN_UNROUTABLE: Final[int]
DROP_UNROUTABLE: Final[int]
DELIVER: Final[int]
DELIVER_NO_ACK: Final[int]
GET: Final[int]
GET_NO_ACK: Final[int]
GET_EMPTY: Final[int]
REDELIVER: Final[int]
ACK: Final[int]
RECEIVED_CONFIRM: Final[int]
BYTES_OUT: Final[int]
RECV_OCT: Final[int]
RECV_CNT: Final[int]
SEND_OCT: Final[int]
SEND_CNT: Final[int]

class Counters:
    moved: bool
    series: Any
    def count(self, counter: int, n: int = 1) -> None: ...
    def value(self, counter: int) -> int: ...
    def take_in(self, other: Counters) -> None: ...
    def counted(self) -> dict[str, int]: ...

class DeliveryStatistics(Counters):
    @property
    def queue(self) -> Counters: ...
    @property
    def channel(self) -> Counters: ...
    @property
    def vhost(self) -> Counters: ...
    @property
    def kind(self) -> Counters: ...
    def __init__(
        self,
        mode: int,
        queue: Counters,
        channel: Counters,
        vhost: Counters,
        kind: Counters,
        latency: Histogram | None = None,
    ) -> None: ...
    def delivered(self, messages: int, stored: int, redelivered: bool, since: int) -> None: ...
    def acknowledged(self, messages: int) -> None: ...
    def found_empty(self) -> None: ...

class Histogram:
    @property
    def bounds(self) -> tuple[int, ...]: ...
    @property
    def counts(self) -> tuple[int, ...]: ...
    @property
    def count(self) -> int: ...
    @property
    def sum(self) -> int: ...
    def __init__(self, bounds: Sequence[int]) -> None: ...
    def observe(self, value: int, times: int = 1) -> None: ...
