"""Counters of the links with one peer."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["PeerCounters"]


@dataclass(slots=True)
class PeerCounters:
    """Figures of one direction of dialing with one peer, since the node was started.

    Figures that may fall are of the link that is open; 0 without one.
    """

    bytes_sent: int = 0
    bytes_received: int = 0
    frames_received: int = 0
    requests: int = 0  # sent to it, or by it
    requests_refused: int = 0
    requests_timed_out: int = 0
    requests_cancelled: int = 0
    messages: int = 0  # one-way ones
    streams: int = 0
    connects: int = 0
    failures: int = 0  # attempts to connect that failed, and links that were lost
    queued_bytes: int = 0
    round_trip_ns: int = 0  # of the last heartbeat
