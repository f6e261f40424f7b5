"""Rate limits of one connection: reading stops before the first publish beyond them.

The frame reader counts down what may be published and stops in the middle of what was read; the
rest is kept, and processed when `leveret.features.rates.rates` allows more. Deliveries pause
likewise. The client is told by connection.blocked.
"""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING

from leveret.amqp.frames import UNLIMITED
from leveret.amqp.holds import Cause
from leveret.features.rates.rates import ConsumeMeter

if TYPE_CHECKING:
    from collections.abc import Sequence

    from leveret.amqp.connection import Connection
    from leveret.amqp.consumer import ChannelConsumer
    from leveret.core.queues.open_queue import OpenQueue
    from leveret.features.rates.rates import Limit, PublishMeter

__all__ = ["OVER_RATE", "ConnectionLimits", "RateHold"]

OVER_RATE = "over the "  # beginning of the reason sent to a client


class RateHold:
    """Keeps a connection from publishing more than its meter allows.

    Nothing is granted in advance, as other connections may use it: the reader stops before the
    first publish of each read and asks.
    """

    __slots__ = ("_connection", "_granted", "_meter", "_reader", "_timer")

    def __init__(self, connection: Connection, meter: PublishMeter) -> None:
        self._connection = connection
        self._reader = connection.reader
        self._meter = meter
        self._timer = connection.broker.timers.timer(self._look_again)
        self._reader.packed = set() if meter.counts_queues else None
        self._granted = self._reader.allowance = 0

    def goes_on(self) -> bool:
        """Count what was published. Returns whether the reader may publish what it has left.

        If it has more and may not, the connection is blocked until it may.
        """
        self._count()
        if not self._reader.stopped:
            return False
        if self._grant():
            return True
        self._hold()
        return False

    @property
    def is_holding(self) -> bool:
        """Whether the reader has publishes that the rate does not allow yet."""
        return self._reader.stopped

    def end(self) -> None:
        """Remove the limit from the reader and unblock the connection."""
        self._count()
        self._timer.set(None)
        self._reader.packed = None
        self._reader.allowance = UNLIMITED
        self._connection.holds.end(Cause.RATE)

    def _count(self) -> None:
        reader = self._reader
        packed: set[object] = set()
        if reader.packed:
            packed, reader.packed = reader.packed, set()  # type: ignore[assignment]
        if packed or self._granted != reader.allowance:
            self._meter.published(self._granted - reader.allowance, packed)  # type: ignore[arg-type]
        self._granted = reader.allowance = 0

    def _grant(self) -> bool:
        """Return whether something may be published now, and set the reader's allowance."""
        allowed = self._meter.allowance()
        self._granted = self._reader.allowance = UNLIMITED if allowed is None else allowed
        return self._granted > 0

    def _hold(self) -> None:
        wait_ms, reason = self._meter.wait()
        if wait_ms is not None:
            self._timer.set(self._connection.broker.timers.wall_ms() + max(wait_ms, 1))
        self._connection.holds.begin(Cause.RATE, OVER_RATE + reason)

    def _look_again(self) -> None:
        """Unblock the connection if the rate allows it now, else wait again."""
        if self._grant():
            self._connection.holds.end(Cause.RATE)
            self._connection.go_on()
        else:
            self._hold()


class ConnectionLimits:
    """Rate limits of one connection, determined when it opens and whenever a limit changes."""

    __slots__ = ("_connection", "_own_consume", "_own_publish", "consume")

    def __init__(self, connection: Connection) -> None:
        rates = connection.broker.rates
        self._connection = weakref.proxy(connection)  # which has them: see Channels
        self._own_publish = rates.own_limit("publish")
        self._own_consume = rates.own_limit("consume")
        self.consume: Sequence[Limit] = ()  # limits that its consumers share

    def publish_hold(self) -> RateHold | None:
        """Return what limits the connection's publishes; None without a limit."""
        connection = self._connection
        meter = connection.broker.rates.publish_meter(
            connection.user, connection.vhost.definition, self._own_publish
        )
        return None if meter is None else RateHold(connection, meter)

    def follow(self) -> None:
        """Determine again the limits of the connection's consumers."""
        connection = self._connection
        self.consume = connection.broker.rates.consume_limits(
            connection.user, connection.vhost.definition, self._own_consume
        )
        for channel in connection.channels.by_number.values():
            for consumer in channel.consumers.values():
                self.follow_consumer(consumer)
            channel.wake_consumers()

    def follow_consumer(self, consumer: ChannelConsumer) -> None:
        """Give a consumer the meter that applies to it now, or none."""
        if consumer.meter is not None:
            consumer.meter.stop()
        consumer.meter = self.meter(consumer.queue, consumer)

    def meter(
        self, queue: OpenQueue, consumer: ChannelConsumer | None = None
    ) -> ConsumeMeter | None:
        """Return a meter of deliveries from a queue; None without a limit."""
        limits = list(self.consume)
        if queue.rates is not None and queue.rates.consume is not None:
            limits.append(queue.rates.consume)
        if not limits:
            return None
        return ConsumeMeter(limits, self._connection.broker.timers, lambda: queue.wake(consumer))
