from typing import Any

from leveret.amqp.added import AddedField
from leveret.amqp.settlements import LeaseHolder, Settlements
from leveret.core.queues.open_queue import OpenQueue
from leveret.features.rates.rates import ConsumeMeter
from leveret.ports.counters import DeliveryStatistics
from leveret.ports.records import Batch

LACKS_SHARED: int

class ConsumerBase(LeaseHolder):
    no_ack: bool
    in_flight: int
    meter: ConsumeMeter | None
    @property
    def channel(self) -> Any: ...
    @property
    def tag(self) -> str: ...
    @property
    def prefetch(self) -> int: ...
    @property
    def added(self) -> AddedField | None: ...
    @property
    def added_again(self) -> AddedField | None: ...
    def __init__(
        self,
        queue: OpenQueue,
        counted: DeliveryStatistics,
        channel: Settlements,
        tag: str,
        no_ack: bool,
        prefetch: int,
        added: AddedField | None,
        added_again: AddedField | None,
    ) -> None: ...
    def capacity(self, once_sent: bool = False) -> int: ...
    def credit(self) -> int: ...
    def send(self, batches: list[Batch], first: int, stop: int, *, redelivered: bool) -> int: ...
    def send_runs(
        self, batches: list[Batch], runs: list[tuple[int, int]], *, redelivered: bool
    ) -> int: ...
