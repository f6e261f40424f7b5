"""Messages from the broker itself: events, traces, log lines, an exchange's history.

They are routed and packed like a client's, in the turn in which they arise; nobody is notified
whether they were routed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable

    from leveret.core.routing.bindings import QueueLike
    from leveret.core.routing.message import Message
    from leveret.core.turn import Turn
    from leveret.core.vhost import Vhost

__all__ = ["InternalPublisher"]


class InternalPublisher:
    """Publishes messages without a channel. `wall_ms()` is their storage time."""

    def __init__(self, turn: Turn, wall_ms: Callable[[], int]) -> None:
        self.wall_ms = wall_ms
        self._turn = turn

    def publish(self, vhost: Vhost, message: Message) -> Collection[QueueLike]:
        """Route a message from its exchange, even an internal one; no-op if it does not exist.

        Returns the queues that got it.
        """
        exchange = vhost.exchanges.get(message.exchange.decode())
        if exchange is not None:
            key = message.routing_key.decode(errors="ignore")  # it may have been truncated
            queues = vhost.reach(exchange, [key], message)
            self.deposit(queues, message)
            return queues
        return ()

    def deposit(self, queues: Iterable[QueueLike], message: Message) -> None:
        """Add a message to queues; it is written at the end of the turn."""
        header = b""
        for queue in queues:
            header = header or message.header
            builder = queue.builder.for_message(message.flags, message.routing_key, header)
            builder.add(
                message.flags,
                self.wall_ms(),
                message.exchange,
                message.routing_key,
                header,
                message.body,
            )
            self._turn.touch(builder.owner)
