"""The machine of a shovel: it is told what comes, and says what to send.

    delivered(tag, …) ─► ForwardMessage(…)       the destination confirms it by a number
    confirmed(number) ─► Settle(tag)             the source forgets the message
    refused(number)   ─► Settle(tag, requeue)    it stays there, and is delivered again

Numbers count the publishes of one connection from 1, as confirms do. A transfer lasts as long as
both connections: what is unconfirmed at its end was not acknowledged, and is delivered again.
"""

from __future__ import annotations

from collections import deque
from enum import StrEnum
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias

from leveret.features.shovels.parameters import AckMode
from leveret.ports.tables import MalformedFieldError

if TYPE_CHECKING:
    from leveret.features.shovels.parameters import ShovelDefinition
    from leveret.features.shovels.rewriting import MessageRewriter

__all__ = [
    "Block",
    "Complete",
    "Delivered",
    "Effect",
    "ForwardMessage",
    "Settle",
    "ShovelTransfer",
    "TransferError",
]


class TransferError(Exception):
    """Raised where a transfer cannot go on; the text is for the status and the log."""


class Delivered(NamedTuple):
    """A message of the source."""

    tag: int
    exchange: str
    routing_key: str
    header: bytes  # content header payload
    body: bytes


class ForwardMessage(NamedTuple):
    """Publish this to the destination; `mandatory` where only one queue is meant."""

    exchange: str
    routing_key: str
    header: bytes
    body: bytes
    mandatory: bool


class Settle(NamedTuple):
    """Acknowledge a delivery to the source, or requeue it; `multiple`: all up to this one."""

    tag: int
    multiple: bool = False
    requeue: bool = False


class Complete(NamedTuple):
    """All is moved that should be: the shovel deletes itself."""


Effect: TypeAlias = ForwardMessage | Settle | Complete


class Block(StrEnum):
    """Reason not to publish for now."""

    BLOCKED = "blocked"  # the destination's broker has said so (connection.blocked)
    FLOW = "flow"  # the connection takes no more


NOTHING: Final[list[Effect]] = []


class ShovelTransfer:
    """Transfer of one shovel. `remaining`: messages after which it is complete; None: never."""

    def __init__(
        self, shovel: ShovelDefinition, rewriter: MessageRewriter, remaining: int | None
    ) -> None:
        self._confirms = shovel.ack_mode is AckMode.ON_CONFIRM
        self._acks = shovel.ack_mode is AckMode.ON_PUBLISH
        # Whether it must reach the one queue that is named: a queue that was deleted meanwhile, and
        # not yet declared again, must not swallow what is confirmed.
        self._mandatory = self._confirms and shovel.destination.queue is not None
        self._rewriter = rewriter
        self._unconfirmed: dict[int, int] = {}  # tags by number, oldest first
        self._pending: deque[Delivered] = deque()
        self._blocks: set[Block] = set()
        self._number = 0
        self._to_publish = remaining  # until no more is published
        self.remaining = remaining  # until it is complete
        self.forwarded = 0

    @property
    def state(self) -> str:
        """`running`, `blocked` or `flow`."""
        if Block.BLOCKED in self._blocks:
            return Block.BLOCKED
        return Block.FLOW if self._blocks else "running"

    @property
    def pending_count(self) -> int:
        """Number of deliveries that wait until the destination takes them."""
        return len(self._pending)

    @property
    def unpublished(self) -> int | None:
        """Number of messages still to be published; None without a limit."""
        return self._to_publish

    @property
    def accepts(self) -> bool:
        """Whether more deliveries should be read."""
        return not self._blocks

    def delivered(self, message: Delivered, now_ms: int) -> list[Effect]:
        """Forward a message, now or once the destination takes it. Raises TransferError."""
        if self._blocks:
            self._pending.append(message)
            return NOTHING
        return self._forward(message, now_ms)

    def blocked(self, block: Block) -> None:
        """Publish nothing for now."""
        self._blocks.add(block)

    def unblocked(self, block: Block) -> bool:
        """Lift a block; return whether pending deliveries can be published (see `next_pending`)."""
        self._blocks.discard(block)
        return not self._blocks and bool(self._pending)

    def next_pending(self, now_ms: int) -> list[Effect]:
        """Forward the pending delivery that came first. Raises TransferError."""
        return self._forward(self._pending.popleft(), now_ms)

    def returned(self) -> None:
        """Fail: the queue that messages go to is gone. Raises TransferError.

        Nothing that is unconfirmed gets lost: the source delivers it again.
        """
        raise TransferError("the destination queue is gone")

    def confirmed(self, number: int, *, multiple: bool) -> list[Effect]:
        """Acknowledge what the destination has confirmed. Raises TransferError."""
        return self._settled(number, multiple=multiple, requeue=False)

    def refused(self, number: int, *, multiple: bool) -> list[Effect]:
        """Requeue what the destination has refused. Raises TransferError."""
        return self._settled(number, multiple=multiple, requeue=True)

    def _forward(self, message: Delivered, now_ms: int) -> list[Effect]:
        if self._to_publish == 0:
            return NOTHING  # it is requeued when the connection closes
        exchange, key = self._rewriter.address(message.exchange, message.routing_key)
        try:
            header = self._rewriter.header(message.header, len(message.body), now_ms)
        except (MalformedFieldError, ValueError) as error:
            raise TransferError(f"a message has properties that are not AMQP's: {error}") from None
        effects: list[Effect] = [
            ForwardMessage(exchange, key, header, message.body, self._mandatory)
        ]
        self.forwarded += 1
        if self._to_publish is not None:
            self._to_publish -= 1
        if self._confirms:
            self._number += 1
            self._unconfirmed[self._number] = message.tag
            return effects
        if self._acks:
            effects.append(Settle(message.tag))
        return effects + self._counted(1)

    def _settled(self, number: int, *, multiple: bool, requeue: bool) -> list[Effect]:
        if not self._confirms:
            return NOTHING
        if not multiple:
            tag = self._unconfirmed.pop(number, None)
            if tag is None:
                raise TransferError(f"the destination has confirmed {number}, which is not awaited")
            return [Settle(tag, requeue=requeue), *self._counted(1)]
        numbers = []
        for each in self._unconfirmed:
            if each > number > 0:  # 0: all of them
                break
            numbers.append(each)
        if not numbers:
            return NOTHING
        tags = [self._unconfirmed.pop(each) for each in numbers]
        return [
            Settle(tags[-1], multiple=True, requeue=requeue),
            *self._counted(len(tags)),
        ]

    def _counted(self, count: int) -> list[Effect]:
        """Count messages that are done, and be complete after the last one."""
        if self.remaining is None or self.remaining == 0:
            return NOTHING
        self.remaining = max(self.remaining - count, 0)
        return [Complete()] if self.remaining == 0 else NOTHING
