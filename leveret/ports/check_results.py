"""What a diagnosis has found: said by whoever looks, shown by whoever was asked."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from enum import StrEnum

__all__ = ["CheckResult", "Severity"]


class Severity(StrEnum):
    """How bad it is."""

    ERROR = "error"  # something does not work, or is lost, or open to strangers
    WARNING = "warning"  # it will, or may


@dataclass(frozen=True, slots=True)
class CheckResult:
    """One thing that is wrong. `check` is its name for programs and stays the same for ever.

    `subject` is what it is about: a file, a queue, a port; `remedy` begins with a verb and has the
    command to type, where there is one.
    """

    check: str
    severity: Severity
    subject: str
    what: str
    why: str
    remedy: str

    def as_json(self) -> dict[str, str]:
        """For answers."""
        return asdict(self)
