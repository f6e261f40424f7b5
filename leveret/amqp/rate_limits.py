"""Rate limits of one connection: what it may publish, and what its consumers may be delivered."""

from __future__ import annotations

from typing import TYPE_CHECKING

from leveret.features.rates.rates import ConsumeMeter

if TYPE_CHECKING:
    from collections.abc import Sequence

    from leveret.core.queues.consumer import QueueConsumer
    from leveret.core.queues.open_queue import OpenQueue
    from leveret.core.vhost import Vhost
    from leveret.features.rates.rates import Limit, PublishMeter, Rates


class ConnectionLimits:
    """Rate limits of one connection, determined when it opens and whenever a limit changes."""

    __slots__ = ("_own_consume", "_own_publish", "_rates", "_user", "_vhost", "consume")

    def __init__(self, rates: Rates, user: str, vhost: Vhost) -> None:
        self._rates = rates
        self._user = user
        self._vhost = vhost
        self._own_publish = rates.own_limit("publish")
        self._own_consume = rates.own_limit("consume")
        self.consume: Sequence[Limit] = ()  # limits that its consumers share

    def follow(self) -> PublishMeter | None:
        """Determine the limits again. Returns the meter of its publishes; None without a limit."""
        rates, user, vhost = self._rates, self._user, self._vhost.definition
        self.consume = rates.consume_limits(user, vhost, self._own_consume)
        return rates.publish_meter(user, vhost, self._own_publish)

    def meter(self, queue: OpenQueue, consumer: QueueConsumer | None = None) -> ConsumeMeter | None:
        """Return a meter of deliveries from a queue; None without a limit."""
        limits = list(self.consume)
        if queue.rates is not None and queue.rates.consume is not None:
            limits.append(queue.rates.consume)
        if not limits:
            return None
        return ConsumeMeter(limits, self._rates.timers, lambda: queue.wake(consumer))
