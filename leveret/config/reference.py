"""The reference of all settings and a sample file, generated from the settings.

`python -m leveret.config.reference` (make docs) writes docs/settings.md and docs/leveret.toml.
"""

from __future__ import annotations

import json
import sys
import textwrap
import types
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal, Union, get_args, get_origin

from pydantic import SecretStr

from leveret.config.configuration import Configuration
from leveret.config.environment import variable
from leveret.config.quantities import unit_of
from leveret.config.settings import Settings
from leveret.config.storage import CONFIRMABLE
from leveret.ports import Durability

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pydantic.fields import FieldInfo

__all__ = ["groups", "sample_file", "setting_text", "settings_page"]

INTRODUCTION: Final = """\
# Settings

Every setting has a safe default. A value comes, the stronger first, from the command line
(`leveret serve --port 5673`), from the environment (`LEVERET_PORT=5673`) or from a TOML file
(`port = 5673`), which `--config` or `LEVERET_CONFIG` names. `leveret config show` prints all values
and where each comes from, `leveret config check` says what is wrong without starting a node.

- Unknown names are refused, in the file and in the environment.
- Sizes and durations may be written with a unit: `64MiB` (of 1024), `64MB` (of 1000); `500ms`,
  `30s`, `2h`.
- Lists are TOML lists in the file; in the environment they are written `guest,probe` or
  `["guest", "probe"]`. `[]` is an empty list.
- An environment variable that is empty counts as not set.
- Kubernetes sets `LEVERET_PORT=tcp://…` in pods beside a service called `leveret`. Such variables
  are passed over with a warning; `enableServiceLinks: false` in the pod's specification keeps them
  away.

[leveret.toml](leveret.toml) is a file with all settings at their defaults. Both files are written
by `make docs` from `leveret/config/`.
"""
SAMPLE_INTRODUCTION: Final = """\
# Settings of a Leveret node, all at their defaults: `leveret serve --config leveret.toml`.
# docs/settings.md has the same as a table. Remove the # before what is to be changed.
"""
COMMENT_COLUMNS: Final = 98
NO_DEFAULT: Final = '"…"'


def groups() -> Iterator[tuple[type[Settings], list[tuple[str, FieldInfo]]]]:
    """Yield the groups of settings in the order of the configuration, each with its fields."""
    for group in Configuration.__bases__:
        if issubclass(group, Settings):
            yield group, [(name, Configuration.model_fields[name]) for name in group.model_fields]


def settings_page() -> str:
    """Return the content of docs/settings.md."""
    parts = [INTRODUCTION]
    for group, fields in groups():
        parts.append(f"## {_title(group)}\n\n{group.__doc__}\n")
        parts.append("| setting | type | default | what it does |\n|---|---|---|---|")
        parts.extend(_row(name, field) for name, field in fields)
        parts.append("")
    return "\n".join(parts)


def sample_file() -> str:
    """Return the content of docs/leveret.toml: each setting as a comment with its default."""
    lines = [SAMPLE_INTRODUCTION]
    for group, fields in groups():
        lines.append(f"\n# ---- {_title(group)}\n")
        for name, field in fields:
            told = f"{field.description} ({_about(name, field)})"
            lines += textwrap.wrap(
                told, COMMENT_COLUMNS, initial_indent="# ", subsequent_indent="# "
            )
            value = _toml(field.default)
            lines.append(f"#{name} = {value or NO_DEFAULT}\n")
    return "\n".join(lines).rstrip() + "\n"


def setting_text(value: object) -> str:
    """Return a setting's value as written in the file; a secret is hidden."""
    if isinstance(value, SecretStr):
        return "(hidden)" if value.get_secret_value() else ""
    if isinstance(value, str):
        return value
    return _toml(value)


def _title(group: type[Settings]) -> str:
    words = {"Tls": "TLS"}
    name = group.__name__.removesuffix("Settings")
    return words.get(name, name)


def _row(name: str, field: FieldInfo) -> str:
    default = _toml(field.default)
    shown = f"`{default}`" if default else "not set"
    text = (field.description or "").replace("|", "\\|")
    return f"| `{name}`<br>`{variable(name)}` | {_about(name, field)} | {shown} | {text} |"


def _about(name: str, field: FieldInfo) -> str:
    """Return type, unit and bounds of a setting."""
    kind = _kind(field.annotation)
    unit = unit_of(name)
    if unit and "number" in kind:
        kind = f"{kind}, {unit}"
    bounds = {
        word: getattr(rule, key)
        for rule in field.metadata
        for key, word in (("ge", "from"), ("gt", "more than"), ("le", "to"), ("lt", "less than"))
        if hasattr(rule, key)
    }
    return ", ".join(filter(None, [kind, " ".join(f"{word} {at}" for word, at in bounds.items())]))


def _kind(annotation: Any) -> str:
    origin = get_origin(annotation)
    if origin in (Union, types.UnionType):
        return " or ".join(_kind(each) for each in get_args(annotation) if each is not type(None))
    if origin is Literal:
        return " or ".join(f"`{each}`" for each in get_args(annotation))
    if origin is tuple:
        return f"list of {_kind(get_args(annotation)[0])}"
    if origin is dict:
        return "table"
    if issubclass(annotation, Enum):
        choices = CONFIRMABLE if annotation is Durability else annotation
        return " or ".join(f"`{each.value}`" for each in choices)
    return KINDS[annotation]


KINDS: Final = {
    bool: "true or false",
    int: "whole number",
    float: "number",
    str: "text",
    Path: "path",
    SecretStr: "secret text",
}


def _toml(value: object) -> str:
    """Return a value in TOML's notation; empty for None."""
    if value is None:
        return ""
    if isinstance(value, SecretStr):
        return '""'
    if isinstance(value, Enum):
        value = value.value
    if isinstance(value, tuple):
        return f"[{', '.join(_toml(each) for each in value)}]"
    if isinstance(value, dict):
        return f"{{{', '.join(f'{key} = {_toml(each)}' for key, each in value.items())}}}"
    if isinstance(value, int | float):
        return json.dumps(value)
    return json.dumps(str(value), ensure_ascii=False)


def main(directory: Path) -> None:
    """Write both files into `directory`."""
    (directory / "settings.md").write_text(settings_page(), encoding="utf-8")
    (directory / "leveret.toml").write_text(sample_file(), encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "docs"))
