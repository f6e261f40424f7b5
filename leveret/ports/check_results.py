"""Results of health checks."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from enum import StrEnum

__all__ = ["CheckResult", "Severity"]


class Severity(StrEnum):
    """Severity of a finding."""

    ERROR = "error"  # something does not work, is lost, or is open to strangers
    WARNING = "warning"  # it will fail, or may


@dataclass(frozen=True, slots=True)
class CheckResult:
    """One problem found by a health check. `check` is its stable name for programs.

    `subject` names the affected file, queue or port; `remedy` begins with a verb and gives the
    command to type, if there is one.
    """

    check: str
    severity: Severity
    subject: str
    what: str
    why: str
    remedy: str

    def as_json(self) -> dict[str, str]:
        """Return the finding as a JSON object."""
        return asdict(self)
