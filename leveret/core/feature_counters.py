"""Feature counters of a broker since its start, for the metrics.

Each is counted where the event occurs; none is sampled, and none falls when a queue is deleted.
High-volume counters are in compiled code instead (core.statistics).
"""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["FeatureCounters"]


@dataclass(slots=True)
class FeatureCounters:
    """Feature counters of one broker."""

    logins_accepted: int = 0
    logins_refused: int = 0
    handshakes_refused: int = 0  # connections closed while too many awaited their handshake
    duplicates: int = 0  # messages not stored because of de-duplication windows or sequence numbers
    filter_looks: int = 0  # records checked by consumers' filters
    filter_finds: int = 0  # those of them that matched
