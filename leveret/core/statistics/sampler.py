"""Periodic sampling of all counters that have changed on a node.

The node's clock calls `sample`. It goes through all counters, in slices with a pass of the event
loop in between, and samples those that have changed since the last time. A hundred thousand idle
queues cost the check of a flag each.
"""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any, TypeVar

from leveret.core.statistics.series import BASIC, DETAILED, GLOBAL, Series

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator, Mapping

    from leveret.core.routing.bindings import QueueLike
    from leveret.core.statistics.series import SampleRetention
    from leveret.core.statistics.statistics import Statistics
    from leveret.core.vhost import Vhost
    from leveret.ports.counters import Counters

__all__ = ["LENGTHS", "Sampler", "lengths"]

T = TypeVar("T")

SLICE = 25  # subjects per slice; a quarter of a millisecond if all have changed
LENGTHS = ("messages", "messages_ready", "messages_unacknowledged")
FORGET_MS = 605_000  # idle for so long, a subject loses its history if there are too many


def lengths(queue: QueueLike) -> tuple[int, int, int]:
    """Return a queue's number of messages: in all, ready, and unacknowledged."""
    ready, leased = queue.message_count, queue.leased_count
    return ready + leased + queue.delayed_count, ready, leased


class Sampler:
    """Samples the counters of virtual hosts and connections into the statistics.

    At most `histories_max` queues, exchanges, connections and channels have a history; the others
    only have rates. `pause()` yields to other work.
    """

    def __init__(
        self,
        vhosts: Mapping[str, Vhost],
        connections: Collection[Any],
        statistics: Statistics,
        interval_ms: int,
        *,
        histories_max: int,
        pause: Callable[[], Awaitable[None]],
    ) -> None:
        self._vhosts = vhosts
        self._connections = connections
        self._pause = pause
        self._statistics = statistics
        self._interval_ms = interval_ms
        self._histories_max = histories_max
        self._histories = 0  # number at the end of the last pass
        self._counted = 0  # number in this pass so far
        self._known: set[str] = set()  # virtual hosts whose queues were all sampled once

    async def sample(self, now_ms: int, process: Mapping[str, int] | None = None) -> None:
        """Take one sample of everything; `now_ms` is since 1970.

        `process` has the resource usage of the node's process, if measured.
        """
        time_ms = now_ms - now_ms % self._interval_ms
        if time_ms <= self._statistics.tick_ms:
            return
        self._counted = 0
        of_node = [0, 0, 0]
        for vhost in list(self._vhosts.values()):
            of_vhost = await self._sample_vhost(vhost, time_ms)
            of_node = [mine + more for mine, more in zip(of_node, of_vhost, strict=True)]
        self._known &= self._vhosts.keys()
        for connections in _slices(list(self._connections)):
            for connection in connections:
                self._sample(connection.counters, time_ms, DETAILED)
                for channel in list(connection.channels.by_number.values()):
                    self._sample(channel.slot.counters, time_ms, DETAILED)
                    for counters in channel.pairs():  # rates only: too many for histories
                        self._sample(counters, time_ms, ())
            await self._pause()
        self._histories = self._counted
        if process is not None:
            self._always(self._statistics.process.counters, time_ms, process)
        self._sample_node(time_ms, dict(zip(LENGTHS, of_node, strict=True)))

    async def _sample_vhost(self, vhost: Vhost, time_ms: int) -> list[int]:
        """Sample a virtual host. Returns the number of messages in its queues."""
        total = [0, 0, 0]
        is_known = vhost.name in self._known
        for queues in _slices(list(vhost.queues.values())):
            for queue in queues:
                counters = queue.counters
                if counters.series is not None or counters.moved or not is_known:
                    self._sample_queue(queue, time_ms, total, is_known=is_known)
            await self._pause()
        self._known.add(vhost.name)
        for exchanges in _slices(list(vhost.exchanges.values())):
            for exchange in exchanges:
                self._sample(exchange.counters, time_ms, BASIC)
            await self._pause()
        values = {**vhost.counters.counted(), **dict(zip(LENGTHS, total, strict=True))}
        self._always(vhost.counters, time_ms, values)
        return total

    def _sample_node(self, time_ms: int, of_queues: Mapping[str, int]) -> None:
        statistics = self._statistics
        counted = statistics.node().counted()
        self._always(statistics.node_counters, time_ms, {**counted, **of_queues})
        self._always(statistics.churn.counters, time_ms, statistics.churn.totals())
        statistics.interval_ms = time_ms - statistics.tick_ms if statistics.tick_ms else 0
        statistics.tick_ms = time_ms

    def _sample_queue(
        self, queue: QueueLike, time_ms: int, total: list[int], *, is_known: bool
    ) -> None:
        counters = queue.counters
        more = _lengths_by_name(queue) if counters.moved or not is_known else None
        self._sample(counters, time_ms, BASIC, more)
        series: Series | None = counters.series
        if series is not None:
            for i, name in enumerate(LENGTHS):
                total[i] += series.last.get(name, 0)

    def _sample(
        self,
        counters: Counters,
        time_ms: int,
        retentions: tuple[SampleRetention, ...],
        more: Mapping[str, int] | None = None,
    ) -> None:
        """Sample counters that have changed, and the values in `more`."""
        series: Series | None = counters.series
        if counters.moved or more:
            counters.moved = False
            values = {**counters.counted(), **(more or {})}
            if series is None:
                series = counters.series = Series(retentions if self._has_room else ())
            series.add(time_ms, values)
        if series is not None and series.retained:
            if not self._has_room and time_ms - series.last_ms > FORGET_MS:
                series.retained = ()  # an idle subject makes room for others
            else:
                self._counted += 1

    @property
    def _has_room(self) -> bool:
        """Whether one more subject may have a history."""
        return max(self._histories, self._counted) < self._histories_max

    def _always(self, counters: Counters, time_ms: int, values: Mapping[str, int]) -> None:
        """Sample counters that always have a history."""
        if counters.series is None:
            counters.series = Series(GLOBAL)
        counters.series.add(time_ms, values)


def _lengths_by_name(queue: QueueLike) -> dict[str, int]:
    found = zip(LENGTHS, lengths(queue), strict=True)
    return {name: count for name, count in found if count}


def _slices(items: Iterable[T]) -> Iterator[list[T]]:
    iterator = iter(items)
    while part := list(itertools.islice(iterator, SLICE)):
        yield part
