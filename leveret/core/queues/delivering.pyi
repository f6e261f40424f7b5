from collections.abc import Sequence

from leveret.core.logs.batching import Batching
from leveret.core.queues.consumer import QueueConsumer
from leveret.core.queues.extensions import QueueExtension
from leveret.core.queues.offers import Deliver
from leveret.core.queues.reading import QueueReader
from leveret.core.queues.state import QueueState
from leveret.ports.records import Batch

PUMP_RECORDS_MAX: int

class Delivering(Batching):
    state: QueueState
    reader: QueueReader
    is_restoring: bool
    _extensions: tuple[QueueExtension, ...]
    _ready_filters: tuple[QueueExtension, ...]
    _delivering: QueueExtension | None
    _noted: int
    _undone_stop: int
    _is_paused: bool
    _expires: bool
    @property
    def message_count(self) -> int: ...
    def _show_committed(self) -> None: ...
    def next_offer(self) -> Deliver | None: ...
    def deliver(self, offer: Deliver, batches: list[Batch]) -> int: ...
    def get(self) -> tuple[int, bool] | None: ...
    def batch_at_hand(self, offset: int) -> Batch | None: ...
    def settle(self, ranges: Sequence[tuple[int, int]]) -> None: ...
    def _write_settled(self, ranges: Sequence[tuple[int, int]]) -> None: ...
    def wake(self, consumer: QueueConsumer | None = None) -> None: ...
