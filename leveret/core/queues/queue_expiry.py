"""Queue expiry: deletion of a queue that was unused for its `x-expires`."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from leveret.core.queues.declared_queue import DeclaredQueue


class QueueExpiry:
    """Expiry timer of one queue. A queue with a consumer is always in use.

    The timer is not reset with each use: when it fires, it checks how much time is left.
    """

    __slots__ = ("_queue", "_timer", "_timers", "_used_ms")

    def __init__(self, queue: DeclaredQueue) -> None:
        self._queue = queue
        self._timers = queue.services.timers
        self._timer = self._timers.timer(self._look)
        self._used_ms = 0

    def end(self) -> None:
        """Note that the queue was used: its expiry time starts again."""
        expires_ms = self._queue.settings.expires_ms
        assert expires_ms is not None, "it does not expire"
        self._used_ms = self._timers.wall_ms()
        if self._timer.due_ms is None:
            self._timer.set(self._used_ms + expires_ms)

    def forget(self) -> None:
        """Stop the timer: the expiry time has changed; the next use starts it again."""
        self._timer.set(None)

    def close(self) -> None:
        """Stop the timer for good: the queue was deleted."""
        self._timer.close()

    def _look(self) -> None:
        queue = self._queue
        expires_ms = queue.settings.expires_ms
        if expires_ms is None or queue.deleted:
            return
        now = self._timers.wall_ms()
        if queue.consumer_count:
            self._timer.set(now + expires_ms)
        elif now - self._used_ms >= expires_ms:
            queue.services.unused(queue)
            if not queue.deleted:  # in a cluster, another node decides
                self._timer.set(now + expires_ms)
        else:
            self._timer.set(self._used_ms + expires_ms)
