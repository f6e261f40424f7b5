"""Services shared by the queues of a broker, and the features that queues may have."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from leveret.core.environment import Environment
from leveret.core.feature_counters import FeatureCounters
from leveret.core.queues.discarding import NoDeadLetters

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from leveret.core.queues.discarding import DiscardedMessages
    from leveret.core.queues.extensions import ExtensionKind
    from leveret.ports.definitions import Arguments
    from leveret.ports.records import Batch

    Work = Callable[[], Coroutine[object, object, None]]

__all__ = ["FewAtATime", "QueueServices", "StreamFilter"]

# Backlogs read at the same time. Each needs one window of its log in memory, and a node may start
# with thousands of queues.
BACKLOGS_AT_ONCE_MAX = 4


class FewAtATime:
    """Concurrency limiter: runs at most `limit` coroutines at once; the others wait in order."""

    def __init__(
        self, spawn: Callable[[Coroutine[object, object, None]], object], limit: int
    ) -> None:
        self._spawn = spawn
        self._limit = limit
        self._running = 0
        self._waiting: deque[Work] = deque()

    def __call__(self, work: Work) -> None:
        """Run `work` now, or when a slot becomes free."""
        self._waiting.append(work)
        self._go_on()

    def _go_on(self) -> None:
        if self._waiting and self._running < self._limit:
            self._running += 1
            self._spawn(self._do(self._waiting.popleft()))

    async def _do(self, work: Work) -> None:
        try:
            await work()
        finally:
            self._running -= 1
            self._go_on()


class StreamFilter(Protocol):
    """Filter of a consumer that reads a log in order."""

    def run(self, batches: list[Batch], first: int, stop: int) -> tuple[int, int]:
        """Return the first run [first, stop) of matching records within [first, stop)."""
        ...


def no_filter(arguments: Arguments, is_over: Callable[[], bool]) -> StreamFilter | None:  # noqa: ARG001
    """Return None: consumers have no filters."""
    return None


@dataclass(frozen=True, slots=True)
class QueueServices(Environment):
    """Environment of the queues of a broker, with what its features offer to them.

    `unused` gets queues whose expiry time (`x-expires`) has passed. `in_sync_count` tells how
    many nodes are in sync (see ports.TopicStore). `discarded(queue)` is made with the first message
    that a queue discards. `stream_filter(arguments, is_over)` parses a consumer's
    filter.
    """

    unused: Callable[[Any], None]
    in_sync_count: Callable[[], int | None]
    discarded: Callable[[Any], DiscardedMessages] = NoDeadLetters
    counts_every_return: bool = True  # against the delivery limit; else only failures
    extensions: tuple[ExtensionKind, ...] = ()  # in the order in which queues call them
    stream_filter: Callable[[Arguments, Callable[[], bool]], StreamFilter | None] = no_filter
    feature_counters: FeatureCounters = field(default_factory=FeatureCounters)

    read_backlog: FewAtATime = field(init=False)

    def __post_init__(self) -> None:
        readers = FewAtATime(self.spawn, BACKLOGS_AT_ONCE_MAX)
        object.__setattr__(self, "read_backlog", readers)  # set once in spite of frozen=True
