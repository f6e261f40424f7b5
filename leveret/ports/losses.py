"""Data-loss reports: logged, and shown until an operator acknowledges them."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

__all__ = ["Loss", "LossKind"]


class LossKind(StrEnum):
    """Kind of lost data. The values are stable: programs read them."""

    MESSAGES = "messages"
    DEFINITIONS = "definitions"
    RECORDS = "records"  # of the audit log, or of usage
    UNREADABLE = "unreadable"  # an entry of the loss report itself


@dataclass(frozen=True, slots=True)
class Loss:
    """One data loss. `subject` is a queue or a file, `what` a sentence about it for the operator.

    `count` is the number of messages, 0 if unknown or if no messages were lost; `at_ms` the time of
    detection in ms since 1970; `number` its number in the report, 0 before one is assigned.
    """

    kind: LossKind
    subject: str
    what: str
    count: int = 0
    at_ms: int = 0
    number: int = 0
