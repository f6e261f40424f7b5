"""Log lines as messages: exchange `amq.rabbitmq.log`, if the operator enables it.

A line's routing key is its level. Failures to store a message are logged, too: lines about queues
that receive log lines are not published, or a full disk would cause an endless loop.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from leveret.core.routing.message import MadeMessage
from leveret.core.topology.predeclared import EVENT_VHOST, LOG_EXCHANGE

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from leveret.core.internal_publisher import InternalPublisher
    from leveret.core.routing.bindings import QueueLike
    from leveret.core.vhost import Vhost

__all__ = ["LogExchange", "LogLine"]

# (level, text, time in seconds since 1970, subject)
LogLine = tuple[str, str, int, object]


class LogExchange:
    """Publishes log lines. `vhosts` are the broker's, by name."""

    def __init__(
        self, vhosts: Mapping[str, Vhost], publisher: InternalPublisher, node_name: str
    ) -> None:
        self._vhosts = vhosts
        self._publisher = publisher
        self._node_name = node_name
        self._takers: set[QueueLike] = set()  # queues that received the previous lines

    def publish(self, lines: Iterable[LogLine]) -> None:
        """Publish lines in order; drop them if no queue is bound."""
        vhost = self._vhosts.get(EVENT_VHOST)
        exchange = vhost.exchanges.get(LOG_EXCHANGE) if vhost is not None else None
        if vhost is None or exchange is None or not exchange.outgoing:
            return
        takers: set[QueueLike] = set()
        for level, text, seconds, subject in lines:
            if subject in self._takers:
                continue
            message = MadeMessage(
                LOG_EXCHANGE.encode(),
                level.encode(),
                {"node": self._node_name},
                text.encode(errors="replace"),
                content_type="text/plain",
                timestamp_seconds=seconds,
            )
            takers.update(self._publisher.publish(vhost, message))
        self._takers = takers or self._takers
