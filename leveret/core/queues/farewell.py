"""Notification of a deleted queue's consumers: some at once, the rest in later turns."""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING

from leveret.core.chores import drain
from leveret.core.turn import TouchedQueue

if TYPE_CHECKING:
    from collections.abc import Iterable

    from leveret.core.queues.open_queue import QueueConsumer
    from leveret.core.turn import Turn

__all__ = ["CONSUMERS_A_TURN", "say_farewell"]

CONSUMERS_A_TURN = 64  # about ten microseconds each


def say_farewell(turn: Turn, consumers: Iterable[QueueConsumer]) -> None:
    """Notify every consumer, in order (QueueConsumer.queue_gone)."""
    farewell = Farewell(consumers)
    if farewell.pump():
        turn.touch(farewell)


class Farewell(TouchedQueue):
    """Consumers still to be notified; the turn treats it as a queue."""

    def __init__(self, consumers: Iterable[QueueConsumer]) -> None:
        self._untold = drain(consumers)

    def flush(self) -> None:
        """Do nothing: there are no records."""

    def pump(self) -> bool:
        """Notify some consumers. Returns whether others are left."""
        told = 0
        for consumer in islice(self._untold, CONSUMERS_A_TURN):
            consumer.queue_gone()
            told += 1
        return told == CONSUMERS_A_TURN
