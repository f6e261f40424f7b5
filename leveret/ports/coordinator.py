"""Coordinator: the small, consistent store in which nodes agree who leads what."""

from __future__ import annotations

from enum import Enum

__all__ = ["WriteOutcome"]


class WriteOutcome(Enum):
    """Answer to a write. One that is UNKNOWN may still be done at any later time."""

    DONE = "done"
    CONFLICT = "conflict"
    UNKNOWN = "unknown"
