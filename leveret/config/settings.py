"""What all groups of settings are: checked wherever they come from, and never changed."""

from __future__ import annotations

from typing import Final

from pydantic import BaseModel, ConfigDict

__all__ = ["KIB", "MIB", "PORT_MAX", "Settings"]

KIB: Final = 1024
MIB: Final = 1024 * KIB
PORT_MAX: Final = 65_535


class Settings(BaseModel):
    """A group of settings. Its fields are told apart by their names from those of all others."""

    # A schema is built when something is first made of it: that of a group never, as it has no use.
    model_config = ConfigDict(frozen=True, extra="forbid", validate_default=True, defer_build=True)
