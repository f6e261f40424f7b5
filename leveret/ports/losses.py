"""What was kept and is gone: told in the log, and shown until an operator has acknowledged it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

__all__ = ["Loss", "LossKind"]


class LossKind(StrEnum):
    """What was lost. The values stay the same for ever: programs read them."""

    MESSAGES = "messages"
    DEFINITIONS = "definitions"
    RECORDS = "records"  # of the audit log, or of usage
    UNREADABLE = "unreadable"  # an entry of the ledger itself


@dataclass(frozen=True, slots=True)
class Loss:
    """One loss. `subject` is a queue or a file, `what` a sentence about it for the operator.

    `count` is how many messages, 0 where that is not known or they are no messages; `at_ms` when it
    was noticed, in milliseconds since 1970; `number` its number in the ledger, 0 before it has one.
    """

    kind: LossKind
    subject: str
    what: str
    count: int = 0
    at_ms: int = 0
    number: int = 0
