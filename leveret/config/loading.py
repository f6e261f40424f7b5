"""Settings from all their sources, the stronger first: command line, environment, TOML file.

In the environment they are called `LEVERET_FRAME_MAX`; what no source names has its default.
"""

from __future__ import annotations

import difflib
import tomllib
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError
from pydantic_settings import EnvSettingsSource

from leveret.config.configuration import Configuration
from leveret.errors import LeveretError

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

__all__ = ["ConfigurationError", "load_configuration"]


class ConfigurationError(LeveretError):
    """The operator wrote a setting that cannot be used; the text names it and its source."""


def load_configuration(
    file: Path | None = None, overrides: Mapping[str, object] | None = None
) -> Configuration:
    """Configuration from all sources. `overrides` come from the command line; None is "not given".

    Raises ConfigurationError, whose text an operator can act on.
    """
    values: dict[str, Any] = {}
    if file is not None:
        values |= _read_file(file)
    values |= EnvSettingsSource(Configuration)()
    values |= {key: value for key, value in (overrides or {}).items() if value is not None}
    try:
        return Configuration(**values)
    except ValidationError as error:
        raise ConfigurationError(_explain(error)) from None


def _read_file(file: Path) -> dict[str, Any]:
    """Settings of a TOML file, whose keys are the names of the fields."""
    try:
        with file.open("rb") as stream:
            values = tomllib.load(stream)
    except OSError as error:
        raise ConfigurationError(f"cannot read {file}: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"{file} is not TOML: {error}") from None
    for key in values:
        if key not in Configuration.model_fields:
            raise ConfigurationError(f"{file}: unknown setting {key!r}{_suggestion(key)}")
    return values


def _suggestion(key: str) -> str:
    close = difflib.get_close_matches(key, Configuration.model_fields, n=1)
    return f"; did you mean {close[0]!r}?" if close else ""


def _explain(error: ValidationError) -> str:
    """One line for each setting that is wrong."""
    return "\n".join(
        f"setting {'.'.join(str(part) for part in detail['loc'])!r}: {detail['msg']}, "
        f"got {detail['input']!r}"
        for detail in error.errors(include_url=False, include_context=False)
    )
