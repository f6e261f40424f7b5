"""Loading of settings, in order of precedence: command line, environment, TOML file, defaults.

In the environment they are called `LEVERET_FRAME_MAX`. The file is named by `--config` or by
LEVERET_CONFIG.
"""

from __future__ import annotations

import difflib
import os
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from pydantic import ValidationError

from leveret.config.configuration import Configuration
from leveret.config.environment import CONFIG_VARIABLE, read_environment, variable
from leveret.config.problems import explain
from leveret.errors import LeveretError

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["DEFAULT", "ConfigurationError", "LoadedConfiguration", "load", "load_configuration"]

DEFAULT: Final = "default"


class ConfigurationError(LeveretError):
    """A setting cannot be used; the text names it and its source."""


@dataclass(frozen=True, slots=True)
class LoadedConfiguration:
    """A configuration with the sources of its values."""

    configuration: Configuration
    sources: Mapping[str, str]
    """Setting → what has said it, for those that something has said."""
    notices: tuple[str, ...]
    """What was passed over, for the operator to know."""

    def source(self, setting: str) -> str:
        """Return the source of a setting's value."""
        return self.sources.get(setting, DEFAULT)


def load_configuration(
    file: Path | None = None, overrides: Mapping[str, object] | None = None
) -> Configuration:
    """Return the configuration from all sources; see `load`."""
    return load(file, overrides).configuration


def load(
    file: Path | None = None,
    overrides: Mapping[str, object] | None = None,
    environ: Mapping[str, str] = os.environ,
) -> LoadedConfiguration:
    """Load the configuration from all sources. `overrides` are options; None is "not given".

    Raises ConfigurationError, whose text tells an operator what to do.
    """
    if file is None and environ.get(CONFIG_VARIABLE):
        file = Path(environ[CONFIG_VARIABLE])
    values: dict[str, Any] = {}
    sources: dict[str, str] = {}
    if file is not None:
        values |= _read_file(file)
        sources |= dict.fromkeys(values, str(file))
    surroundings = read_environment(environ)
    if surroundings.unknown:
        raise ConfigurationError("\n".join(map(_unknown_variable, surroundings.unknown)))
    values |= surroundings.values
    sources |= {key: f"environment variable {variable(key)}" for key in surroundings.values}
    given = {key: value for key, value in (overrides or {}).items() if value is not None}
    values |= given
    sources |= {key: f"option --{key.replace('_', '-')}" for key in given}
    try:
        configuration = Configuration(**values)
    except ValidationError as error:
        problems = error.errors(include_url=False)
        raise ConfigurationError(explain(problems, values, sources)) from None
    return LoadedConfiguration(configuration, sources, tuple(surroundings.notices))


def _read_file(file: Path) -> dict[str, Any]:
    """Return the settings of a TOML file, whose keys are the names of the fields."""
    try:
        with file.open("rb") as stream:
            values = tomllib.load(stream)
    except OSError as error:
        raise ConfigurationError(f"cannot read {file}: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"{file} is not TOML: {error}") from None
    unknown = [key for key in values if key not in Configuration.model_fields]
    if unknown:
        raise ConfigurationError(
            "\n".join(f"{file}: unknown setting '{key}'{_suggestion(key)}" for key in unknown)
        )
    return values


def _unknown_variable(name: str) -> str:
    key = name.upper().removeprefix("LEVERET_").lower()
    close = _closest(key)
    meant = f"; did you mean {variable(close)}?" if close else ""
    return f"environment variable {name}: unknown setting '{key}'{meant}"


def _suggestion(key: str) -> str:
    close = _closest(key)
    return f"; did you mean '{close}'?" if close else ""


def _closest(key: str) -> str:
    return next(iter(difflib.get_close_matches(key, Configuration.model_fields, n=1)), "")
