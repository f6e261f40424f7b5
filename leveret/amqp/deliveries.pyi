from leveret.amqp.added import AddedField
from leveret.amqp.frames import ChannelSlot
from leveret.ports.records import Batch
from leveret.ports.traffic import Traffic

OUTBOX_BYTES_MIN: int

class Outbox:
    frame_size_max: int
    @property
    def size(self) -> int: ...
    @property
    def sent(self) -> Traffic: ...
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
        size_max: int,
        added: AddedField | None = None,
        counted: Traffic | None = None,
    ) -> int: ...
    def deliver_runs(
        self,
        slot: ChannelSlot,
        consumer_tag: bytes,
        batches: list[Batch],
        runs: list[tuple[int, int]],
        redelivered: bool,
        size_max: int,
        added: AddedField | None = None,
        counted: Traffic | None = None,
    ) -> int: ...
    def get_ok(
        self,
        slot: ChannelSlot,
        batch: Batch,
        offset: int,
        redelivered: bool,
        message_count: int,
        added: AddedField | None = None,
        counted: Traffic | None = None,
    ) -> None: ...
    def confirm(self, channel: int, tag: int, multiple: bool, nack: bool) -> None: ...
