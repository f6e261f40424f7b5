"""Limits of replication."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["ReplicationLimits"]


@dataclass(frozen=True, slots=True)
class ReplicationLimits:
    """Bounds of what a leader sends, and of the time that it waits for a follower."""

    # A follower that has something this long not on its disk leaves the in-sync set: a flush or a
    # stall of a disk takes less, and publishers wait for it.
    lag_ms_max: int = 2_500
    # Before it has its logs open, a leader waits this long for members whose logs it compares with
    # its own, some 50 µs for each log: nobody is served then.
    comparison_ms_max: int = 10_000
    # One whose link has ended, and which has not come back: its process has ended, or its machine.
    # A link that was cut for a moment takes less.
    absent_ms_max: int = 1_000
    # A leader whose flush takes this long has a disk that hangs, and has another one lead. It is
    # longer than followers may lag: where all disks hang, it is alone by then, and goes on.
    flush_ms_max: int = 5_000
    frame_bytes_max: int = 1 << 20  # some ms of a network, so that logs take turns
    window_bytes_max: int = 8 << 20  # under way to a follower: what a disk flushes in some 50 ms
    # Files to be removed at a follower or copied to it as a whole, that wait for the window: one
    # that has so many attaches anew, which tells it of all at once.
    waiting_files_max: int = 10_000
