"""How rates limit one connection: its reading stops before a publish too many, deliveries pause.

The frame reader counts down what may be published and stops in the middle of what was read; the
rest is kept, and gone on with when `leveret.core.access.rates` has more to give. Its client is
told.
"""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING

from leveret.amqp.frames import UNLIMITED
from leveret.amqp.holds import Cause
from leveret.core.access.rates import ConsumeMeter

if TYPE_CHECKING:
    from collections.abc import Sequence

    from leveret.amqp.connection import Connection
    from leveret.amqp.consumer import ChannelConsumer
    from leveret.core.access.rates import Limit, PublishMeter
    from leveret.core.queues.open_queue import OpenQueue

__all__ = ["OVER_RATE", "ConnectionLimits", "RateHold"]

OVER_RATE = "over the "  # how the reason begins that a client is told


class RateHold:
    """Keeps a connection from publishing more than its meter allows.

    Nothing is granted in advance, as others may take it: the reader stops before the first publish
    of each read and asks.
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
        """Count what was published. Returns whether the reader has more that may be published now.

        Where it has more and may not, the connection is held until it may.
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
        """Whether there is more that the connection may not publish yet."""
        return self._reader.stopped

    def end(self) -> None:
        """Something else decides from now on, or nothing. What it held back can be gone on with."""
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
        """Whether something may be published now."""
        allowed = self._meter.allowance()
        self._granted = self._reader.allowance = UNLIMITED if allowed is None else allowed
        return self._granted > 0

    def _hold(self) -> None:
        wait_ms, reason = self._meter.wait()
        if wait_ms is not None:
            self._timer.set(self._connection.broker.timers.wall_ms() + max(wait_ms, 1))
        self._connection.holds.begin(Cause.RATE, OVER_RATE + reason)

    def _look_again(self) -> None:
        """The time has come, unless others have taken what came back meanwhile."""
        if self._grant():
            self._connection.holds.end(Cause.RATE)
            self._connection.go_on()
        else:
            self._hold()


class ConnectionLimits:
    """What limits one connection. It looks at it when it opens and whenever a limit changes."""

    __slots__ = ("_connection", "_own_consume", "_own_publish", "consume")

    def __init__(self, connection: Connection) -> None:
        rates = connection.broker.rates
        self._connection = weakref.proxy(connection)  # which has them: see Channels
        self._own_publish = rates.own_limit("publish")
        self._own_consume = rates.own_limit("consume")
        self.consume: Sequence[Limit] = ()  # what its consumers share

    def publish_hold(self) -> RateHold | None:
        """What keeps it from publishing too fast; None where nothing shall."""
        connection = self._connection
        meter = connection.broker.rates.publish_meter(
            connection.user, connection.vhost.definition, self._own_publish
        )
        return None if meter is None else RateHold(connection, meter)

    def follow(self) -> None:
        """Look anew at what limits its consumers."""
        connection = self._connection
        self.consume = connection.broker.rates.consume_limits(
            connection.user, connection.vhost.definition, self._own_consume
        )
        for channel in connection.channels.by_number.values():
            for consumer in channel.consumers.values():
                self.follow_consumer(consumer)
            channel.wake_consumers()

    def follow_consumer(self, consumer: ChannelConsumer) -> None:
        """Give a consumer the meter that it needs now, or none."""
        if consumer.meter is not None:
            consumer.meter.stop()
        consumer.meter = self.meter(consumer.queue, consumer)

    def meter(
        self, queue: OpenQueue, consumer: ChannelConsumer | None = None
    ) -> ConsumeMeter | None:
        """What counts deliveries from a queue; None where nobody does."""
        limits = list(self.consume)
        if queue.rates is not None and queue.rates.consume is not None:
            limits.append(queue.rates.consume)
        if not limits:
            return None
        return ConsumeMeter(limits, self._connection.broker.timers, lambda: queue.wake(consumer))
