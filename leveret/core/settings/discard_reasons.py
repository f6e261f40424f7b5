"""Reasons for which a queue discards a message, in the words of headers and metrics."""

from __future__ import annotations

from enum import StrEnum

__all__ = ["DEATHS", "Reason"]


class Reason(StrEnum):
    """Reason for which a queue discards a message."""

    REJECTED = "rejected"
    EXPIRED = "expired"
    MAX_LENGTH = "maxlen"
    DELIVERY_LIMIT = "delivery_limit"
    # Discarded only if the queue retries such messages (see leveret.features.retry.rules).
    REQUEUED = "requeued"
    DISCONNECTED = "disconnected"
    TIMED_OUT = "timeout"

    @property
    def is_death(self) -> bool:
        """Whether the message is discarded for this reason even without retries."""
        return self in DEATHS

    @property
    def when_exhausted(self) -> Reason:
        """Reason for dead-lettering after the last retry."""
        return self if self.is_death else Reason.DELIVERY_LIMIT


DEATHS = (Reason.REJECTED, Reason.EXPIRED, Reason.MAX_LENGTH, Reason.DELIVERY_LIMIT)
