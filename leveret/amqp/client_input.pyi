from collections.abc import Callable
from typing import Any, TypeAlias

from leveret.amqp.deliveries import Outbox
from leveret.amqp.frames import FrameReader, Publish
from leveret.amqp.handshake import ConnectionState
from leveret.amqp.transport import Transport
from leveret.core.alarms import Alarms
from leveret.core.turn import Turn
from leveret.core.vhost import Vhost
from leveret.errors import ChannelError
from leveret.ports.authentication import Rights

# Number of the channel, and what comes on it (see FrameReader).
Event: TypeAlias = tuple[int, bytes | Publish | ChannelError]

GETS_TOGETHER: int

class ClientInput:
    state: ConnectionState
    vhost: Vhost
    rights: Rights
    touch: Callable[[], None]
    rate_hold: Any
    waits: int
    route_generation: int
    again: Event | None
    channel_number: int
    method_ids: tuple[int, int]
    @property
    def reader(self) -> FrameReader: ...
    @property
    def outbox(self) -> Outbox: ...
    @property
    def transport(self) -> Transport: ...
    def __init__(
        self,
        transport: Transport,
        reader: FrameReader,
        turn: Turn,
        alarms: Alarms,
        state: ConnectionState,
    ) -> None: ...
    def received(self, data: bytes | bytearray | memoryview) -> None: ...
    def next_event(self) -> Event | tuple[()] | None: ...
    def collect(self) -> None: ...
    def hand_over(self, *, large: bool = ...) -> None: ...
    def update_routes(self) -> None: ...
