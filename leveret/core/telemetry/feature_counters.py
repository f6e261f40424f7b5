"""What a broker counts of its features since its start, for the metrics.

Each count is kept where the thing happens; none of them is sampled, and none falls when a queue is
deleted. What passes through in bulk is counted in compiled code instead (core.statistics).
"""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["FeatureCounters"]


@dataclass(slots=True)
class FeatureCounters:
    """Counts of one broker."""

    logins_accepted: int = 0
    logins_refused: int = 0
    handshakes_refused: int = 0  # connections that were closed because too many waited to begin
    duplicates: int = 0  # messages that windows, or publishers' numbers, kept from being stored
    filter_looks: int = 0  # records that consumers' filters were asked about
    filter_finds: int = 0  # of these, the ones that somebody wanted
