"""Field-by-field parsing of an object in a definitions document, with places in errors."""

from __future__ import annotations

from typing import Any, Final

from leveret.core.json_fields import InvalidFieldError, field_of, table_of
from leveret.core.names import NAME_BYTES_MAX
from leveret.errors import LeveretError
from leveret.ports.definitions import Json

__all__ = ["DefinitionsError", "Fields"]

TEXT_BYTES_MAX: Final = 4096  # patterns are the longest; names have limits of their own
NAMES: Final = {"name", "vhost", "source", "destination", "exchange", "routing_key", "user"}
REQUIRED: Final = object()


class DefinitionsError(LeveretError):
    """Raised for a document that cannot be imported: `queues[3].arguments.x-message-ttl: …`."""

    def __init__(self, place: str, problem: str) -> None:
        super().__init__(f"{place}: {problem}" if place else problem)
        self.place = place
        self.problem = problem


class Fields:
    """Fields of one object; `of_vhost` is the virtual host of a document that names none."""

    def __init__(self, place: str, value: Json, of_vhost: str | None) -> None:
        """Wrap an object. Raises DefinitionsError, as all methods do."""
        if not isinstance(value, dict):
            raise DefinitionsError(place, "an object was expected")
        self.place = place
        self._of_vhost = of_vhost
        self._value: dict[str, Json] = value
        self._read: set[str] = set()
        self._inner: list[Fields] = []

    def error(self, key: str, problem: str) -> DefinitionsError:
        """Return an error about one field."""
        return DefinitionsError(f"{self.place}.{key}", problem)

    def has(self, key: str) -> bool:
        """Whether a field is present."""
        return key in self._value

    def skip(self, *keys: str) -> None:
        """Mark fields as known but ignored."""
        self._read.update(keys)

    def unread(self) -> list[str]:
        """Return the places of fields that were not read."""
        own = [f"{self.place}.{key}" for key in self._value if key not in self._read]
        return own + [place for inner in self._inner for place in inner.unread()]

    def json(self, key: str, default: Json = REQUIRED) -> Json:
        """Return a value of any kind, within the limits of a field table."""
        value = self._get(key, default)
        try:
            field_of(value)
        except InvalidFieldError as error:
            raise self.error(f"{key}{error.path}", error.problem) from None
        return value

    def text(self, key: str, default: str | None = None) -> str:
        """Return a string; without a default the field is required."""
        value = self._get(key, REQUIRED if default is None else default)
        if not isinstance(value, str):
            raise self.error(key, "text was expected")
        if any("\ud800" <= character <= "\udfff" for character in value):
            raise self.error(key, "not Unicode text")
        bytes_max = NAME_BYTES_MAX if key in NAMES else TEXT_BYTES_MAX
        if len(value.encode()) > bytes_max:
            raise self.error(key, f"longer than {bytes_max} bytes")
        return value

    def flag(self, key: str, *, default: bool) -> bool:
        """Return a boolean."""
        value = self._get(key, default)
        if not isinstance(value, bool):
            raise self.error(key, "true or false was expected")
        return value

    def integer(self, key: str, default: int) -> int:
        """Return an integer of 64 bits."""
        value = self.json(key, default)
        if not isinstance(value, int) or isinstance(value, bool):
            raise self.error(key, "a whole number was expected")
        return value

    def tags(self) -> tuple[str, ...]:
        """Return tags given as a list, or joined by commas as in RabbitMQ 3.8."""
        value = self._get("tags", [])
        if isinstance(value, str):
            value = [tag.strip() for tag in value.split(",") if tag.strip()]
        if not isinstance(value, list) or not all(isinstance(tag, str) for tag in value):
            raise self.error("tags", "a list of text was expected")
        self.json("tags", [])
        return tuple(value)

    def names(self, key: str) -> tuple[str, ...]:
        """Return a list of names; empty if absent."""
        value = self.json(key, [])
        if not isinstance(value, list) or not all(isinstance(name, str) for name in value):
            raise self.error(key, "a list of text was expected")
        if any(not 0 < len(name.encode()) <= NAME_BYTES_MAX for name in value):
            raise self.error(key, f"a name has 1 to {NAME_BYTES_MAX} bytes")
        return tuple(dict.fromkeys(value))

    def pairs(self, key: str, default: Json = REQUIRED) -> dict[str, Any]:
        """Return an object, also from a list of pairs as RabbitMQ's command line writes some."""
        value = self.json(key, default)
        if isinstance(value, list) and all(map(_is_pair, value)):
            value = dict(value)
        if not isinstance(value, dict):
            raise self.error(key, "an object was expected")
        return value

    def table(self, key: str) -> dict[str, Any]:
        """Return a field table; empty if absent."""
        value = self._get(key, {})
        if value == []:  # an empty table, as some of RabbitMQ's tools write it
            value = {}
        if not isinstance(value, dict):
            raise self.error(key, "an object was expected")
        try:
            table = table_of(value)
        except InvalidFieldError as error:
            raise self.error(f"{key}{error.path}", error.problem) from None
        return table

    def inner(self, key: str) -> Fields:
        """Return the fields of a nested object; none if absent."""
        fields = Fields(f"{self.place}.{key}", self._get(key, {}), self._of_vhost)
        self._inner.append(fields)
        return fields

    def vhost(self) -> str:
        """Return the virtual host that the object belongs to."""
        if self._of_vhost is None:
            return self.text("vhost")
        self.skip("vhost")
        return self._of_vhost

    def _get(self, key: str, default: Json) -> Json:
        self._read.add(key)
        value = self._value.get(key, default)
        if value is REQUIRED:
            raise self.error(key, "is missing")
        return value


def _is_pair(value: Json) -> bool:
    return isinstance(value, list) and len(value) == 2 and isinstance(value[0], str)
