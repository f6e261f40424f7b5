"""Reader of options by name, for all that the data source and its jobs have.

Spark hands option names over in lower case or as written: they are compared without regard to case.
A wrong option is an OptionError that names it; nothing is ignored in silence.
"""

from __future__ import annotations

import json
import re
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

__all__ = ["OptionError", "OptionReader", "option_time_ms", "time_ms"]

EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)

DURATION: Final = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([a-z]*)\s*", re.IGNORECASE)
UNIT_S: Final = {
    **dict.fromkeys(("ms", "millisecond", "milliseconds"), 0.001),
    **dict.fromkeys(("", "s", "sec", "second", "seconds"), 1.0),
    **dict.fromkeys(("m", "min", "minute", "minutes"), 60.0),
    **dict.fromkeys(("h", "hour", "hours"), 3600.0),
    **dict.fromkeys(("d", "day", "days"), 86400.0),
}


class OptionError(ValueError):
    """An option is unknown, missing, wrong, or contradicts another one."""


def time_ms(text: str) -> int:
    """Return a time, ISO 8601 or milliseconds since 1970, as these; it is UTC unless it says.

    Times before 1970 are 0. Raises OptionError.
    """
    if re.fullmatch(r"\d{1,15}", text):
        return int(text)
    try:
        time = datetime.fromisoformat(text)
    except ValueError:
        raise OptionError(
            f"'{text}' is no time: write 2026-01-05T09:30:00Z, or milliseconds since 1970"
        ) from None
    since = (time if time.tzinfo else time.replace(tzinfo=UTC)) - EPOCH
    return max(0, since // timedelta(milliseconds=1))


def option_time_ms(name: str, text: str) -> int:
    """Return a time in an option as `time_ms` does. Raises OptionError, which names the option."""
    try:
        return time_ms(text.strip())
    except OptionError as error:
        raise OptionError(f"option '{name}': {error}") from None


class OptionReader:
    """Takes options by name, and knows at the end which ones nobody has asked for."""

    def __init__(self, options: Mapping[str, str]) -> None:
        self._given = {name.lower(): str(value) for name, value in options.items()}
        self._known: dict[str, str] = {}  # as they are written, by their names in lower case

    def text(self, name: str, default: str | None = None) -> str | None:
        """Return an option; an empty one is refused. Raises OptionError."""
        self._known[name.lower()] = name
        value = self._given.get(name.lower())
        if value is None:
            return default
        if not value.strip():
            raise OptionError(f"option '{name}' is empty")
        return value

    def needed(self, name: str, what: str) -> str:
        """Return an option that must be there; `what` says what it is. Raises OptionError."""
        value = self.text(name)
        if value is None:
            raise OptionError(f"option '{name}' is missing: {what}")
        return value

    def integer(self, name: str, default: int, low: int = 0, high: int = (1 << 63) - 1) -> int:
        """Return an integer option within bounds. Raises OptionError."""
        value = self.text(name)
        if value is None:
            return default
        if not re.fullmatch(r"\s*\d{1,19}\s*", value) or not low <= int(value) <= high:
            bounds = f"from {low} to {high}" if high < 1 << 62 else f"of at least {low}"
            raise OptionError(f"option '{name}' is '{value}', and must be an integer {bounds}")
        return int(value)

    def flag(self, name: str, *, default: bool) -> bool:
        """Return an option that is true or false. Raises OptionError."""
        value = self.text(name)
        if value is None:
            return default
        if value.strip().lower() not in {"true", "false"}:
            raise OptionError(f"option '{name}' is '{value}', and must be true or false")
        return value.strip().lower() == "true"

    def duration_s(self, name: str, default: float) -> float:
        """Return a time as seconds: `15m`, `30s`, `500ms`. Raises OptionError."""
        value = self.text(name)
        if value is None:
            return default
        found = DURATION.fullmatch(value)
        if found is None or found[2].lower() not in UNIT_S:
            raise OptionError(f"option '{name}' is '{value}', and must be a time such as 30s or 5m")
        return float(found[1]) * UNIT_S[found[2].lower()]

    def time_ms(self, name: str) -> int | None:
        """Return a time as `time_ms` does, None where it is not given. Raises OptionError."""
        value = self.text(name)
        return None if value is None else option_time_ms(name, value)

    def one_of(self, name: str, values: Iterable[str], default: str) -> str:
        """Return an option that is one of several words. Raises OptionError."""
        value, known = self.text(name, default), list(values)
        assert value is not None, "it has a default"
        if value.strip().lower() not in known:
            raise OptionError(f"option '{name}' is '{value}', and must be {' or '.join(known)}")
        return value.strip().lower()

    def json(self, name: str) -> Any:
        """Return an option that is JSON, None where it is not given. Raises OptionError."""
        value = self.text(name)
        if value is None:
            return None
        try:
            return json.loads(value)
        except (ValueError, RecursionError) as error:
            raise OptionError(f"option '{name}' is no JSON: {error}") from None

    def is_given(self, name: str) -> bool:
        """Whether an option is there."""
        return name.lower() in self._given

    def end(self) -> None:
        """Raise OptionError if options were given that do not exist."""
        unknown = sorted(self._given.keys() - self._known.keys() - {"path"})
        if unknown:
            raise OptionError(
                f"the data source 'leveret' has no option '{unknown[0]}'; it has "
                + ", ".join(sorted(self._known.values(), key=str.lower))
            )
