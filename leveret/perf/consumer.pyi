from leveret.perf.histogram import LatencyHistogram
from leveret.perf.verifier import Verifier
from leveret.perf.wire import Endpoint, Link, WorkerCounters

ACK_EACH: int
ACK_EVERY: int
ACK_READ: int

class LoadConsumer(Endpoint):
    """Consumes on one channel: counts, times, verifies and acknowledges.

    With `ack_every` 0 nothing is acknowledged (the consumer is no-ack). Otherwise, once so many are
    unacknowledged: ACK_EACH writes a frame for each message, ACK_EVERY one `multiple` frame,
    ACK_READ one `multiple` frame when all that was received with them is handled.

    With `reject` it sends basic.nack, without requeue, instead of acknowledging.

    `gets`, when given, holds one basic.get frame per queue: the consumer then gets one message at a
    time, from the queues in turn, until `quota` have come.
    """

    def __init__(
        self,
        link: Link,
        channel: int,
        counters: WorkerCounters,
        ack_every: int,
        ack_frames: int,
        *,
        stamped: bool = ...,
        verifier: Verifier | None = ...,
        slot_from_tag: bool = ...,
        gets: list[bytes] | None = ...,
        quota: int = ...,
        reject: bool = ...,
    ) -> None: ...
    @property
    def latency(self) -> LatencyHistogram: ...
    @property
    def consumed(self) -> int: ...
    @property
    def idle(self) -> bool: ...
    def ask(self) -> None: ...
    def settle(self) -> None: ...
