"""Counters with rates and samples, in RabbitMQ's form.

publish             the counter
publish_details     {"rate": per second in the last interval of sampling}, and where the query has
msg_rates_age and msg_rates_incr (lengths_…, data_rates_…, node_stats_…), both in seconds:
"samples": [{"sample", "timestamp"}], the newest first, and "avg", "avg_rate"
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from leveret.core.statistics.sampler import LENGTHS
from leveret.core.statistics.series import BASIC, DETAILED, GLOBAL
from leveret.mgmt_ui.api.problems import bad_request

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from leveret.core.statistics.series import SampleRetention
    from leveret.core.statistics.statistics import Counted, Statistics

__all__ = ["HANDED_OUT", "PUBLISHED", "Ranges", "Shown", "added", "retention_policies"]

SAMPLES_MAX = 2_000  # of one counter in one answer: a week by five minutes
AGE_SECONDS_MAX = 7 * 24 * 3600

PUBLISHED = ("publish", "confirm", "return_unroutable", "drop_unroutable")
HANDED_OUT = (
    *("get", "get_no_ack", "deliver", "deliver_no_ack"),
    *("redeliver", "ack", "deliver_get", "get_empty"),
)
CHURN = (
    *("connection_created", "connection_closed", "channel_created", "channel_closed"),
    *("queue_declared", "queue_created", "queue_deleted"),
)


@dataclass(frozen=True, slots=True)
class Range:
    """Range of samples: from `age_s` seconds ago on, `incr_s` seconds apart."""

    age_s: int
    incr_s: int


@dataclass(frozen=True, slots=True)
class Ranges:
    """Ranges of samples that a query asks for; None: no samples."""

    msg_rates: Range | None = None
    lengths: Range | None = None
    data_rates: Range | None = None
    node_stats: Range | None = None

    @classmethod
    def parse(cls, parameters: Mapping[str, str]) -> Ranges:
        """Parse the ranges of a query string. Raises ApiError 400."""
        names = ("msg_rates", "lengths", "data_rates", "node_stats")
        return cls(*(_range(parameters, name) for name in names))


def _range(parameters: Mapping[str, str], name: str) -> Range | None:
    age, incr = parameters.get(f"{name}_age"), parameters.get(f"{name}_incr")
    if age is None or incr is None:
        return None
    if not all(text.isascii() and text.isdigit() and len(text) <= 9 for text in (age, incr)):
        raise bad_request(f"{name}_age and {name}_incr are numbers of seconds")
    age_s, incr_s = int(age), int(incr)
    if not 0 < incr_s <= age_s <= AGE_SECONDS_MAX or age_s // incr_s > SAMPLES_MAX:
        raise bad_request(
            f"{name}_age is at most {AGE_SECONDS_MAX} seconds, and {SAMPLES_MAX} times {name}_incr"
        )
    return Range(age_s, incr_s)


@dataclass(frozen=True, slots=True)
class Shown:
    """Statistics to show, and with which ranges of samples."""

    statistics: Statistics
    ranges: Ranges

    def messages(self, subject: Counted | None, names: Sequence[str]) -> dict[str, Any]:
        """Return message counters of a subject, or of the node (None)."""
        return self._rated(subject, names, self._counted(subject), self.ranges.msg_rates)

    def message_stats(self, subject: Counted, *groups: Sequence[str]) -> dict[str, Any]:
        """Return the groups of message counters that are not all zero, as RabbitMQ does."""
        counted = self._counted(subject)
        names = [
            name for group in groups if any(counted.get(name) for name in group) for name in group
        ]
        return self._rated(subject, names, counted, self.ranges.msg_rates)

    def octets(self, subject: Counted) -> dict[str, Any]:
        """Return bytes received and sent on sockets."""
        names = ("recv_oct", "send_oct")
        return self._rated(subject, names, self._counted(subject), self.ranges.data_rates)

    def lengths(self, subject: Counted | None, counts: Mapping[str, int]) -> dict[str, Any]:
        """Return message counts of queues; `counts` are the current ones."""
        return self._rated(subject, LENGTHS, counts, self.ranges.lengths)

    def churn(self) -> dict[str, Any]:
        """Return the churn counters: connections, channels and queues created and closed."""
        churn = self.statistics.churn
        return self._rated(churn, CHURN, churn.totals(), self.ranges.msg_rates)

    def node(self, gauges: Mapping[str, int]) -> dict[str, Any]:
        """Return the node's resource usage, with `gauges` as current values, and its churn."""
        statistics, wanted = self.statistics, self.ranges.node_stats
        return {
            **self._rated(statistics.process, list(gauges), gauges, wanted),
            **self._rated(statistics.churn, CHURN, statistics.churn.totals(), wanted),
        }

    def _counted(self, subject: Counted | None) -> Mapping[str, int]:
        return self.statistics.totals() if subject is None else self.statistics.of(subject)

    def _rated(
        self,
        subject: Counted | None,
        names: Sequence[str],
        totals: Mapping[str, int],
        wanted: Range | None,
    ) -> dict[str, Any]:
        history: Sequence[tuple[int, tuple[int, ...]]] = ()
        if wanted is not None:
            history = self.statistics.history(subject, names, wanted.age_s, wanted.incr_s)
        row: dict[str, Any] = {}
        for i, name in enumerate(names):
            rate = self.statistics.rate(subject, name)
            samples = [(time_ms, values[i]) for time_ms, values in history]
            row[name] = totals.get(name, 0)
            row[f"{name}_details"] = {"rate": rate, **sampled(samples)}
        return row


def sampled(samples: Sequence[tuple[int, int]]) -> dict[str, Any]:
    """Return samples and their averages; empty without samples."""
    if not samples:
        return {}
    told: dict[str, Any] = {
        "samples": [{"sample": value, "timestamp": ms} for ms, value in reversed(samples)]
    }
    if len(samples) > 1:
        (first_ms, first), (last_ms, last) = samples[0], samples[-1]
        told["avg_rate"] = (last - first) * 1000 / (last_ms - first_ms)
        told["avg"] = sum(value for _, value in samples) / len(samples)
    return told


def added(rows: Sequence[Any]) -> Any:
    """Return the sum of rows of one form; shared timestamps are not added."""
    first, *others = rows
    if isinstance(first, dict):
        return {
            name: first[name] if name == "timestamp" else added([row[name] for row in rows])
            for name in first
        }
    if isinstance(first, list):
        return [added(each) for each in zip(first, *others, strict=True)]
    return first + sum(others)


def retention_policies() -> dict[str, list[int]]:
    """Return the sample retention times, in seconds."""
    policies = {"global": GLOBAL, "basic": BASIC, "detailed": DETAILED}
    return {name: _ages(retentions) for name, retentions in policies.items()}


def _ages(retentions: Iterable[SampleRetention]) -> list[int]:
    return [retention.age_ms // 1000 for retention in retentions]
