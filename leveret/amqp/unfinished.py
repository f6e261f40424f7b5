"""Memory of all connections for messages without their end and for transactions.

No consumer can take it and no queue's limit counts it. Beyond the limit, all connections that have
begun something are blocked but one, the one that began first: it continues until it has finished,
then the next does. If nothing is finished for a time, because that one is silent, the connection
that holds most is closed.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING

from leveret.amqp.protocol import Cause
from leveret.errors import ConnectionClosingError

if TYPE_CHECKING:
    from collections.abc import Callable

    from leveret.amqp.protocol import ConnectionBase
    from leveret.core.timers import Timers

__all__ = ["NOTED_BYTES_MIN", "Unfinished"]

# A busy publisher's reads end within a message nearly always: so little of one is not noted.
NOTED_BYTES_MIN = 16 * 1024
REASON = "too many unfinished messages on this node"


class Unfinished:
    """Connections with unfinished messages or transactions, in the order in which they began.

    `is_blocked()` returns whether an alarm is active, during which none is expected to finish.
    """

    def __init__(
        self, bytes_max: int, stall_ms: int, timers: Timers, is_blocked: Callable[[], bool]
    ) -> None:
        self._bytes_max = bytes_max
        self._stall_ms = stall_ms
        self._timers = timers
        self._timer = timers.timer(self._look)
        self._is_blocked = is_blocked
        self._held: OrderedDict[ConnectionBase, int] = OrderedDict()
        self._paused: set[ConnectionBase] = set()
        self._progress = False  # something was finished since the last check
        self.total = 0  # bytes of them all

    def note(self, connection: ConnectionBase, held_bytes: int) -> None:
        """Note the size of a connection's unfinished messages now, in bytes."""
        before = self._held.get(connection, 0)
        if held_bytes:
            self._held[connection] = held_bytes
        elif before:
            del self._held[connection]
            self._paused.discard(connection)
            connection.unblock(Cause.UNFINISHED)
        self.total += held_bytes - before
        self._progress = self._progress or held_bytes < before
        if self.total > self._bytes_max:
            self._pause(connection)
        elif self._paused:
            self._resume_all()

    def _pause(self, connection: ConnectionBase) -> None:
        """Block `connection` unless it is the first with something unfinished; unblock that one."""
        first = next(iter(self._held))
        if connection is not first and connection in self._held:
            self._paused.add(connection)
            connection.block(Cause.UNFINISHED, REASON)
        if first in self._paused:
            self._paused.discard(first)
            first.unblock(Cause.UNFINISHED)
        if self._timer.due_ms is None:
            self._progress = False
            self._timer.set(self._timers.wall_ms() + self._stall_ms)

    def _resume_all(self) -> None:
        paused, self._paused = self._paused, set()
        for connection in paused:
            connection.unblock(Cause.UNFINISHED)

    def _look(self) -> None:
        """Close the largest connection if nothing finished since the last check, alarms aside."""
        if self.total <= self._bytes_max:
            return
        progress, self._progress = self._progress, False
        self._timer.set(self._timers.wall_ms() + self._stall_ms)
        if not (progress or self._is_blocked()):
            largest = max(self._held, key=lambda connection: self._held[connection])
            largest.shut(
                ConnectionClosingError(
                    506,
                    f"unfinished messages of more than {self._bytes_max} bytes on this node, "
                    f"{self._held[largest]} of them on this connection",
                )
            )
