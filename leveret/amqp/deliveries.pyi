from leveret.amqp.added import AddedField
from leveret.amqp.frames import ChannelSlot
from leveret.ports.counters import Counters, DeliveryStatistics
from leveret.ports.records import Batch
from leveret.ports.traffic import Traffic

OUTBOX_BYTES_MIN: int
OUTBOX_BYTES_MAX: int

class Outbox:
    counters: Counters
    vhost: Counters
    frame_size_max: int
    size_max: int
    @property
    def size(self) -> int: ...
    @property
    def sent(self) -> Traffic: ...
    @property
    def is_full(self) -> bool: ...
    @property
    def is_torn(self) -> bool: ...
    def __init__(self) -> None: ...
    def __len__(self) -> int: ...
    def write(self, data: bytes | bytearray | memoryview) -> None: ...
    def take(self) -> list[bytes | memoryview]: ...
    def deliver(
        self,
        slot: ChannelSlot,
        consumer_tag: bytes,
        batches: list[Batch],
        first: int,
        stop: int,
        redelivered: bool,
        added: AddedField | None = None,
        counted: DeliveryStatistics | None = None,
    ) -> int: ...
    def deliver_runs(
        self,
        slot: ChannelSlot,
        consumer_tag: bytes,
        batches: list[Batch],
        runs: list[tuple[int, int]],
        redelivered: bool,
        added: AddedField | None = None,
        counted: DeliveryStatistics | None = None,
    ) -> int: ...
    def get_ok(
        self,
        slot: ChannelSlot,
        batch: Batch,
        offset: int,
        redelivered: bool,
        message_count: int,
        added: AddedField | None = None,
        counted: DeliveryStatistics | None = None,
    ) -> None: ...
    def confirm(self, slot: ChannelSlot, tag: int, multiple: bool, nack: bool) -> None: ...
