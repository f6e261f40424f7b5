"""Rate limit of what a connection publishes: reading stops before the first publish beyond it.

The frame reader counts down what may be published and stops in the middle of what was read; the
rest is kept, and processed when `leveret.features.rates.rates` allows more. The client is told by
connection.blocked.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from leveret.amqp.frames import UNLIMITED
from leveret.amqp.protocol import Cause

if TYPE_CHECKING:
    from leveret.amqp.protocol import ConnectionBase
    from leveret.features.rates.rates import PublishMeter

__all__ = ["OVER_RATE", "RateHold"]

OVER_RATE = "over the "  # beginning of the reason sent to a client


class RateHold:
    """Keeps a connection from publishing more than its meter allows.

    Nothing is granted in advance, as other connections may use it: the reader stops before the
    first publish of each read and asks.
    """

    __slots__ = ("_connection", "_granted", "_meter", "_reader", "_timer")

    def __init__(self, connection: ConnectionBase, meter: PublishMeter) -> None:
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
        self._timer.close()
        self._reader.packed = None
        self._reader.allowance = UNLIMITED
        self._connection.unblock(Cause.RATE)

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
        self._connection.block(Cause.RATE, OVER_RATE + reason)

    def _look_again(self) -> None:
        """Unblock the connection if the rate allows it now, else wait again."""
        if self._grant():
            self._connection.unblock(Cause.RATE)
            self._connection.go_on()
        else:
            self._hold()
