"""Results of a run."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from leveret.perf.histogram import LatencyHistogram

__all__ = ["PERCENTILES", "Latency", "Result", "Verification"]

PERCENTILES = {"p50": 0.5, "p75": 0.75, "p95": 0.95, "p99": 0.99, "p99.9": 0.999}
MILLISECOND_NS = 1_000_000


@dataclass(frozen=True)
class Latency:
    """Percentiles in milliseconds; empty when nothing was timed."""

    samples: int = 0
    milliseconds: dict[str, float] = field(default_factory=dict)

    @classmethod
    def of(cls, histogram: LatencyHistogram) -> Latency:
        """Read the percentiles of a histogram of nanoseconds."""
        if not histogram.count:
            return cls()
        values = {"min": histogram.minimum}
        values |= {name: histogram.percentile(share) for name, share in PERCENTILES.items()}
        values["max"] = histogram.maximum
        return cls(
            histogram.count, {name: value / MILLISECOND_NS for name, value in values.items()}
        )


@dataclass(frozen=True)
class Verification:
    """Numbers of missing, duplicate and foreign messages."""

    missing: int
    duplicates: int
    foreign: int

    @property
    def clean(self) -> bool:
        """Whether everything arrived exactly once."""
        return not (self.missing or self.duplicates or self.foreign)


@dataclass(frozen=True)
class Result:
    """Rates and counts of the measured time, and of the whole run where the name says `total`.

    Rates are messages per second, the broker's processor time microseconds per message. A client
    whose share of a processor is near 1 for each of its processes was itself the limit.
    """

    seconds: float = 0
    published_per_s: float = 0
    confirmed_per_s: float = 0
    consumed_per_s: float = 0
    published_total: int = 0
    confirmed_total: int = 0
    refused_total: int = 0
    returned_total: int = 0
    consumed_total: int = 0
    redelivered_total: int = 0
    empty_total: int = 0
    blocked_total: int = 0
    complete: bool = True
    latency: Latency = Latency()
    confirm_latency: Latency = Latency()
    broker_cpu_us_per_message: float | None = None
    broker_cpu_share: float | None = None
    client_cpu_share: float | None = None
    broker_resident_bytes_before: int | None = None
    broker_resident_bytes_peak: int | None = None
    broker_resident_bytes_after: int | None = None
    connections: int = 0
    connect_seconds: float = 0
    verification: Verification | None = None

    @property
    def ok(self) -> bool:
        """Whether everything published was confirmed and consumed, as far as the plan demands."""
        return self.complete and (self.verification is None or self.verification.clean)

    def as_json(self) -> dict[str, object]:
        """Return the result as plain values."""
        return asdict(self) | {"ok": self.ok}
