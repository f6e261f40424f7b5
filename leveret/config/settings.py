"""Base class of all groups of settings: validated from any source, and immutable."""

from __future__ import annotations

import json
from typing import Any, Final

from pydantic import BaseModel, ConfigDict, ValidationInfo, field_validator

from leveret.config.quantities import parse_quantity, unit_of

__all__ = ["KIB", "MIB", "PORT_MAX", "Settings", "split_names"]

KIB: Final = 1024
MIB: Final = 1024 * KIB
PORT_MAX: Final = 65_535

# Characters that a list in some other notation would leave in a name; no name has them.
FOREIGN_CHARACTERS: Final = frozenset("[]{}\"'")


class Settings(BaseModel):
    """A group of settings. Its fields are told apart by their names from those of all others."""

    # A schema is built when something is first made of it: that of a group never, as it has no use.
    model_config = ConfigDict(frozen=True, extra="forbid", validate_default=True, defer_build=True)

    @field_validator("*", mode="before")
    @classmethod
    def _takes_quantities(cls, value: object, info: ValidationInfo) -> object:
        """Convert sizes and durations written with units, such as `64MiB` or `30s`."""
        unit = unit_of(info.field_name or "")
        if not unit or not isinstance(value, str):
            return value
        number = parse_quantity(value, unit)
        return value if number is None else number


def split_names(value: object) -> object:
    """Split names in `guest,probe` or `["guest", "probe"]`; other types are returned as they are.

    Raises ValueError for what looks like a list in neither notation: taken as one name, it would
    silently leave out the names that it means.
    """
    if not isinstance(value, str):
        return value
    if value.lstrip().startswith("["):
        return _decode_names(value)
    names = tuple(name.strip() for name in value.split(",") if name.strip())
    if any(FOREIGN_CHARACTERS & set(name) for name in names):
        raise ValueError("expected names with commas between them, or a list of them in JSON")
    return names


def _decode_names(value: str) -> Any:
    try:
        return json.loads(value)
    except ValueError:
        raise ValueError(
            'expected a list in JSON such as ["guest", "probe"], or names with commas between them'
        ) from None
