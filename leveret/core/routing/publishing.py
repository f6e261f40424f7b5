"""Messages that come from inside the broker: events, traces, log lines, an exchange's history.

They are routed and packed as a client's are, in the turn in which they arise; nobody is told
whether anybody took them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable

    from leveret.core.routing.bindings import QueueLike
    from leveret.core.routing.message import Message
    from leveret.core.turn import TouchedQueue, Turn
    from leveret.core.vhost import Vhost

__all__ = ["InternalPublisher"]


class InternalPublisher:
    """Puts messages into queues without a channel. `wall_ms()` is the time that records get."""

    def __init__(self, turn: Turn, wall_ms: Callable[[], int]) -> None:
        self.wall_ms = wall_ms
        self._turn = turn

    def publish(self, vhost: Vhost, message: Message) -> Collection[QueueLike]:
        """Route a message from its exchange, internal or not; a missing one takes nothing.

        Returns the queues that have got it.
        """
        exchange = vhost.exchanges.get(message.exchange.decode())
        if exchange is not None:
            key = message.routing_key.decode(errors="ignore")  # it may have been cut to fit
            queues = vhost.reach(exchange, [key], message)
            self.deposit(queues, message)
            return queues
        return ()

    def deposit(self, queues: Iterable[QueueLike], message: Message) -> None:
        """Put a message into queues; it is written at the end of the turn."""
        header = b""
        for queue in queues:
            header = header or message.header
            queue.builder.add(
                message.flags,
                self.wall_ms(),
                message.exchange,
                message.routing_key,
                header,
                message.body,
            )
            # Routing knows queues as less than they are; the broker has made every one of them.
            self._turn.touch(cast("TouchedQueue", queue))
