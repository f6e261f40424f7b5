"""Consumer of a queue, as the queue and its state see it.

`say_farewell` notifies the consumers of a deleted queue: some at once, the rest in later turns.
"""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, Any, Protocol

from leveret.core.chores import drain
from leveret.core.turn import TouchedQueue

if TYPE_CHECKING:
    from collections.abc import Iterable

    from leveret.core.queues.sending import Runs
    from leveret.core.turn import Turn
    from leveret.ports.definitions import Arguments
    from leveret.ports.records import Batch

__all__ = ["CONSUMERS_A_TURN", "Consumer", "QueueConsumer", "say_farewell"]

CONSUMERS_A_TURN = 64  # about ten microseconds each


class Consumer(Protocol):
    """Consumer as the state sees it. Compared by identity; `priority` does not change."""

    @property
    def priority(self) -> int:
        """Priority of the consumer; higher ones are served first."""
        ...


class QueueConsumer(Consumer, Protocol):
    """Consumer as a queue sees it."""

    no_ack: bool
    arguments: Arguments  # validated arguments of basic.consume

    @property
    def in_flight(self) -> int:
        """Number of its deliveries that are not settled."""
        ...

    def capacity(self) -> int:
        """Return how many more deliveries it may take now; negative: waits for shared capacity."""
        ...

    def credit(self) -> int:
        """Return its capacity once its connection has sent its pending output."""
        ...

    def send(self, batches: list[Batch], first: int, stop: int, *, redelivered: bool) -> int:
        """Write deliveries of the records [first, stop).

        Returns the offset behind the last one sent.
        """
        ...

    def send_runs(self, batches: list[Batch], runs: Runs, *, redelivered: bool) -> int:
        """Write deliveries of several runs, which the batches contain.

        Returns the offset reached.
        """
        ...

    def queue_gone(self) -> None:
        """Notify the client that the queue was deleted."""
        ...

    def share(self, partition: Any) -> QueueConsumer | None:
        """Return the part of this consumer that a partition serves, or what stands for one.

        None for a consumer of partitions that are led here only.
        """
        ...


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
