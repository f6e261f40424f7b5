from leveret.perf.histogram import LatencyHistogram
from leveret.perf.wire import Endpoint, Link, WorkerCounters

class Burst:
    """Copies of one publish in one buffer; `fill` changes only what differs between messages.

    `template` is the publish's frames. At `number_at` are eight digits of its routing key, at
    `priority_at` its priority, at `stamp_at` the sixteen bytes for time and identity; -1 if there
    is no such place.
    """

    def __init__(
        self,
        template: bytes,
        slots: int,
        *,
        number_at: int = ...,
        priority_at: int = ...,
        stamp_at: int = ...,
        delay_ns: int = ...,
    ) -> None: ...
    @property
    def slot_bytes(self) -> int: ...
    @property
    def slots(self) -> int: ...

class Numbers:
    """Number of each message's routing key, or its priority: in turn, or random."""

    def __init__(self, first: int, step: int, count: int, seed: int | None) -> None: ...
    @property
    def count(self) -> int: ...
    def next(self) -> int: ...

class LoadPublisher(Endpoint):
    """Publishes on one channel: at most `quota` messages, `window` unconfirmed (0: no confirms).

    `priorities` are written into the burst, where it has a place for them.
    """

    def __init__(
        self,
        link: Link,
        channel: int,
        identity: int,
        burst: Burst,
        numbers: Numbers,
        counters: WorkerCounters,
        quota: int,
        window: int,
        priorities: Numbers | None = ...,
    ) -> None: ...
    @property
    def latency(self) -> LatencyHistogram: ...
    @property
    def published(self) -> int: ...
    @property
    def settled(self) -> int: ...
    @property
    def identity(self) -> int: ...
    def sent(self) -> dict[int, int]: ...
    @property
    def eager(self) -> bool: ...
    def pump(self, allowance: int) -> int: ...
