"""Delivery of due messages to the queues they are routed to now, a batch at a time.

Used by `leveret.features.delay.delayed_messages` and `leveret.features.celery.eta_hold`, which keep
each message until every target queue has committed it. A full queue refuses; the others get no
second copy when it is tried again (see leveret.features.dead_letter.publish).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from leveret.features.dead_letter.publish import NOWHERE, DeadLetterPublish
from leveret.features.dead_letter.rules import all_keys
from leveret.ports.partitioner import place_of
from leveret.ports.ranges import RangeSet
from leveret.ports.records import RecordFlag

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from leveret.core.routing.exchange import Exchange
    from leveret.core.turn import Turn
    from leveret.core.vhost import Vhost
    from leveret.features.dead_letter.publish import Delivered, Written
    from leveret.features.delay.store import PendingMessage
    from leveret.ports.partitioner import RecordTarget

__all__ = ["DueDelivery", "DueRouting"]


class DueRouting:
    """Routing of messages that are due in a virtual host now.

    `gone` has the names of exchanges that messages were published to and that no longer exist.
    """

    def __init__(self, vhost: Vhost) -> None:
        self.gone: set[bytes] = set()
        self._vhost = vhost
        self._exchanges: dict[bytes, Exchange | None] = {}

    def route(self, message: PendingMessage) -> Sequence[RecordTarget]:
        """Return the builders of its queues, by alternate exchanges if needed.

        Empty if unroutable.
        """
        name = message.exchange
        if name in self._exchanges:
            exchange = self._exchanges[name]
        else:
            exchange = self._exchanges[name] = self._vhost.exchanges.get(name.decode())
        if exchange is None:
            self.gone.add(name)
            return ()
        if exchange.cache.cacheable and not message.flags & RecordFlag.SELECTS_KEYS:
            return self._vhost.reach_by_key(exchange, message.routing_key)
        keys = all_keys(message.routing_key, message.header, message.flags)
        return [queue.builder for queue in self._vhost.reach(exchange, keys, message.stored)]


class DueDelivery(DeadLetterPublish):
    """One batch of messages on its way from a delayed-message store to queues.

    `route` returns a message's builders; `unrouted` are the messages without any.
    """

    def __init__(
        self,
        messages: Sequence[PendingMessage],
        route: Callable[[PendingMessage], Sequence[RecordTarget]],
        now_ms: int,
        written: Written = NOWHERE,
    ) -> None:
        """Put messages into their queues, in order."""
        ranges = RangeSet()
        for message in messages:
            ranges.add(message.offset, message.offset + 1)
        super().__init__(list(ranges), written)
        self.unrouted: list[PendingMessage] = []
        self._unrouted = ()  # an unroutable message is done with
        for message in messages:
            self._put(message, route(message), now_ms)

    def _put(self, message: PendingMessage, targets: Sequence[RecordTarget], now_ms: int) -> None:
        if not targets:
            self.unrouted.append(message)
        _, offset, flags, exchange, routing_key, header, body = message
        flags &= RecordFlag.STORED
        for target in targets:
            builder = target.for_message(flags, routing_key, header, offset)
            if place_of(builder) in self.written:
                continue
            builder.add(flags, now_ms, exchange, routing_key, header, body)
            acknowledgement = self.acknowledgement(builder)
            acknowledgement.given.add(offset, offset + 1)
            if builder.publish_tags is not None:
                builder.publish_tags.add(acknowledgement, offset, builder.count - 1)

    def deliver(self, turn: Turn, delivered: Delivered) -> None:
        """Wait for the queues' commits, then call `delivered` (see `begin`)."""
        for builder in self._acknowledgements:
            turn.touch(builder.owner)
        self.begin(delivered)
