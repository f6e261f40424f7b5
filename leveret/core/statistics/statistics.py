"""A node's counters by whom they belong to, and their sums.

The broker makes one `Statistics`; connections and queues ask it for what they count in, the HTTP
API, the metrics and the pages for what was counted.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from leveret.core.queues.arguments import TYPES, type_of
from leveret.core.statistics.churn import Churn
from leveret.ports.counters import MESSAGE_SIZE_BOUNDS, Counters, DeliveryStatistics, Histogram

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from leveret.core.statistics.series import Series
    from leveret.ports.definitions import QueueDefinition

__all__ = ["Counted", "Statistics"]

# From what a network takes to a day: what waits longer was meant to wait.
LATENCY_BOUNDS_MS = (
    *(1, 2, 5, 10, 20, 50, 100, 200, 500),
    *(1_000, 2_000, 5_000, 10_000, 30_000),
    *(60_000, 300_000, 1_800_000, 3_600_000, 21_600_000, 86_400_000),
)

UTILISATION_MS = 60_000  # twelve samples: enough to be a share, and soon told of a change

DELIVER_GET = ("deliver", "deliver_no_ack", "get", "get_no_ack")


class Counted(Protocol):
    """Whoever has counters of its own: a queue, an exchange, a virtual host, or a connection."""

    @property
    def counters(self) -> Counters:
        """Its counters."""
        ...


class CountedQueue(Counted, Protocol):
    """A queue."""

    definition: QueueDefinition


class Gauges:
    """What the process takes of its machine: values that come and go, sampled like counters."""

    def __init__(self) -> None:
        self.counters = Counters()  # for the series that the sampler makes of it


class Statistics:
    """All that is counted on a node, since its start.

    `latency`: milliseconds from when a message was taken in to its first delivery, but for those
    that were read from streams. `message_sizes`: bytes of the bodies that were published.
    """

    def __init__(self) -> None:
        self.churn = Churn()
        self.process = Gauges()
        self.latency = Histogram(LATENCY_BOUNDS_MS)
        self.message_sizes = Histogram(MESSAGE_SIZE_BOUNDS)
        # What was handed out of all queues of a type, those that were deleted included.
        self.by_queue_type = {name: Counters() for name in TYPES}
        self.node_counters = Counters()  # for the series that the sampler makes of their sums
        self.tick_ms = 0  # when the last samples were taken, in milliseconds since 1970
        self.interval_ms = 0  # between the last two; 0: there were no two
        self._vhosts: dict[str, Counters] = {}
        self._deleted = Counters()  # of virtual hosts that are gone

    # -- what is counted in

    def vhost(self, name: str) -> Counters:
        """What a virtual host counts in, from its first to its last message."""
        found = self._vhosts.get(name)
        if found is None:
            found = self._vhosts[name] = Counters()
        return found

    def vhost_deleted(self, name: str) -> None:
        """It is gone; what passed through it still counts for the node."""
        gone = self._vhosts.pop(name, None)
        if gone is not None:
            self._deleted.take_in(gone)

    def delivery_statistics(
        self, mode: int, queue: CountedQueue, channel: Counters
    ) -> DeliveryStatistics:
        """What a consumer or getter of `queue` counts in; `mode` is how it is handed messages.

        Streams are read from wherever their readers like, so their records' age means nothing.
        """
        kind = type_of(queue.definition.arguments)
        return DeliveryStatistics(
            mode,
            queue.counters,
            channel,
            self.vhost(queue.definition.vhost),
            self.by_queue_type[kind],
            None if kind == "stream" else self.latency,
        )

    # -- what was counted

    def totals(self) -> Mapping[str, int]:
        """What the whole node has counted; what is 0 is left out."""
        return with_sums(self.node().counted())

    def of(self, subject: Counted) -> Mapping[str, int]:
        """What one of those who are counted has counted; what is 0 is left out."""
        return with_sums(subject.counters.counted())

    def rate(self, subject: Counted | None, name: str) -> float:
        """How much of one counter came per second of late: of a subject, or of the node (None)."""
        series = self.series(subject)
        if series is None:
            return 0.0
        names = DELIVER_GET if name == "deliver_get" else (name,)
        return sum(series.rate(each, self.tick_ms, self.interval_ms) for each in names)

    def series(self, subject: Counted | None) -> Series | None:
        """What was sampled of a subject, or of the node; None where nothing was yet."""
        counters = self.node_counters if subject is None else subject.counters
        found: Series | None = counters.series
        return found

    def idle_since(self, subject: Counted) -> int | None:
        """When a subject moved last, in milliseconds since 1970; None: just now, or never."""
        series = self.series(subject)
        return None if series is None or series.last_ms == self.tick_ms else series.last_ms

    def consumer_utilisation(self, queue: Counted) -> float | None:
        """The share of the last minute in which no message of a queue waited for its consumers.

        As far as samples tell; None where there are none.
        """
        series = self.series(queue)
        if series is None:
            return None
        samples = series.finest(UTILISATION_MS)
        if samples is not None:
            return samples.share_without("messages_ready", self.tick_ms, UTILISATION_MS)
        return float(not series.last.get("messages_ready"))

    def history(
        self, subject: Counted | None, names: Sequence[str], age_s: int, incr_s: int
    ) -> list[tuple[int, tuple[int, ...]]]:
        """(milliseconds since 1970, values), oldest first, `incr_s` apart, from `age_s` ago on.

        Names are those of the counters, and `messages`, `messages_ready`,
        `messages_unacknowledged` of queues, virtual hosts and the node.
        """
        series = self.series(subject)
        samples = None if series is None else series.finest(age_s * 1000)
        if samples is None:
            return []
        step_ms = incr_s * 1000
        times = range(self.tick_ms - age_s // incr_s * step_ms, self.tick_ms + 1, step_ms)
        summed = "deliver_get" in names
        wanted = [*names, *DELIVER_GET] if summed else names
        found = ((time_ms, samples.at(time_ms, wanted)) for time_ms in times)
        if not summed:
            return list(found)
        at = names.index("deliver_get")
        return [
            (time_ms, (*values[:at], sum(values[len(names) :]), *values[at + 1 : len(names)]))
            for time_ms, values in found
        ]

    def node(self) -> Counters:
        """The sum of all virtual hosts that are or were there."""
        node = Counters()
        node.take_in(self._deleted)
        for counters in self._vhosts.values():
            node.take_in(counters)
        return node


def with_sums(counted: dict[str, int]) -> dict[str, int]:
    """Add `deliver_get`, as RabbitMQ does: all that was handed out, in whichever way."""
    handed_out = sum(counted.get(name, 0) for name in DELIVER_GET)
    return {**counted, "deliver_get": handed_out} if handed_out else counted
