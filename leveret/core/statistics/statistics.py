"""Counters of a node by owner, and their sums.

The broker makes one `Statistics`; connections and queues get their counters from it, the HTTP API,
the metrics and the pages read them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from leveret.core.settings.arguments import TYPES, type_of
from leveret.ports.counters import MESSAGE_SIZE_BOUNDS, Counters, DeliveryStatistics, Histogram

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from leveret.core.statistics.series import Series
    from leveret.ports.definitions import QueueDefinition

__all__ = ["Churn", "Counted", "Statistics"]

# From network latency to a day: longer waits are intended.
LATENCY_BOUNDS_MS = (
    *(1, 2, 5, 10, 20, 50, 100, 200, 500),
    *(1_000, 2_000, 5_000, 10_000, 30_000),
    *(60_000, 300_000, 1_800_000, 3_600_000, 21_600_000, 86_400_000),
)

UTILISATION_MS = 60_000  # twelve samples: enough for a share, and quick to show a change

# RabbitMQ's counters by the events that they count (core.events).
CHURN_EVENTS = {
    "connection.created": "connection_created",
    "connection.closed": "connection_closed",
    "channel.created": "channel_created",
    "channel.closed": "channel_closed",
    "queue.declared": "queue_declared",  # each declaration, even of an existing queue; not an event
    "queue.created": "queue_created",
    "queue.deleted": "queue_deleted",
}

DELIVER_GET = ("deliver", "deliver_no_ack", "get", "get_no_ack")


class Counted(Protocol):
    """Owner of counters: a queue, an exchange, a virtual host, or a connection."""

    @property
    def counters(self) -> Counters:
        """Counters of this object."""
        ...


class CountedQueue(Counted, Protocol):
    """Queue with counters."""

    definition: QueueDefinition


class Gauges:
    """Resource usage of the process: gauges, sampled like counters."""

    def __init__(self) -> None:
        self.counters = Counters()  # holder of the sampler's series


class Churn:
    """Connections, channels and queues created and closed on a node since its start."""

    def __init__(self) -> None:
        self.counters = Counters()  # holder of the sampler's series
        self._counts = dict.fromkeys(CHURN_EVENTS.values(), 0)

    def happened(self, event: str) -> None:
        """Count an event, whether or not it is published."""
        name = CHURN_EVENTS.get(event)
        if name is not None:
            self._counts[name] += 1

    def totals(self) -> Mapping[str, int]:
        """Return all counts by name."""
        return dict(self._counts)


class Statistics:
    """All counters of a node, since its start.

    `latency`: ms from storing a message to its first delivery, except for streams. `message_sizes`:
    bytes of published bodies.
    """

    def __init__(self) -> None:
        self.churn = Churn()
        self.process = Gauges()
        self.latency = Histogram(LATENCY_BOUNDS_MS)
        self.message_sizes = Histogram(MESSAGE_SIZE_BOUNDS)
        # Deliveries by queue type, deleted queues included.
        self.by_queue_type = {name: Counters() for name in TYPES}
        self.node_counters = Counters()  # holder of the series of their sums
        self.tick_ms = 0  # time of the last samples, in ms since 1970
        self.interval_ms = 0  # ms between the last two samples; 0 if there were not two
        self._vhosts: dict[str, Counters] = {}
        self._deleted = Counters()  # of deleted virtual hosts

    # -- counters

    def vhost(self, name: str) -> Counters:
        """Return the counters of a virtual host, created on demand."""
        found = self._vhosts.get(name)
        if found is None:
            found = self._vhosts[name] = Counters()
        return found

    def vhost_deleted(self, name: str) -> None:
        """Remove a virtual host's counters; its counts remain in those of the node."""
        gone = self._vhosts.pop(name, None)
        if gone is not None:
            self._deleted.take_in(gone)

    def delivery_statistics(
        self, mode: int, queue: CountedQueue, channel: Counters
    ) -> DeliveryStatistics:
        """Return delivery counters for a consumer or getter of `queue`; `mode` is its method.

        Latency is not recorded for streams, which are read from any position.
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

    # -- readings

    def totals(self) -> Mapping[str, int]:
        """Return the totals of the node, without zeros."""
        return with_sums(self.node().counted())

    def of(self, subject: Counted) -> Mapping[str, int]:
        """Return the counts of one object, without zeros."""
        return with_sums(subject.counters.counted())

    def rate(self, subject: Counted | None, name: str) -> float:
        """Return the recent rate per second of one counter, of a subject or of the node (None)."""
        series = self.series(subject)
        if series is None:
            return 0.0
        names = DELIVER_GET if name == "deliver_get" else (name,)
        return sum(series.rate(each, self.tick_ms, self.interval_ms) for each in names)

    def series(self, subject: Counted | None) -> Series | None:
        """Return the samples of a subject, or of the node; None before the first."""
        counters = self.node_counters if subject is None else subject.counters
        found: Series | None = counters.series
        return found

    def idle_since(self, subject: Counted) -> int | None:
        """Return when a subject last changed, in ms since 1970; None if just now, or never."""
        series = self.series(subject)
        return None if series is None or series.last_ms == self.tick_ms else series.last_ms

    def consumer_utilisation(self, queue: Counted) -> float | None:
        """Return the share of the last minute in which no message of a queue was ready.

        As far as samples tell; None without any.
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
        """Return (ms since 1970, values), oldest first, every `incr_s`, from `age_s` ago on.

        Names are those of counters, and `messages`, `messages_ready`, `messages_unacknowledged` for
        queues, virtual hosts and the node.
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
        """Return the sum of all virtual hosts, deleted ones included."""
        node = Counters()
        node.take_in(self._deleted)
        for counters in self._vhosts.values():
            node.take_in(counters)
        return node


def with_sums(counted: dict[str, int]) -> dict[str, int]:
    """Return the counts with `deliver_get`, all deliveries by any method, as RabbitMQ has it."""
    handed_out = sum(counted.get(name, 0) for name in DELIVER_GET)
    return {**counted, "deliver_get": handed_out} if handed_out else counted
