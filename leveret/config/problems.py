"""Error texts of invalid settings, for the operator."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from leveret.config.quantities import unit_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from pydantic_core import ErrorDetails

__all__ = ["explain"]

SECRETS: Final = frozenset({"encryption_key", "zookeeper_password"})
VALUE_CHARACTERS_MAX: Final = 200  # of a wrong value that is quoted

SENTENCES: Final[dict[str, Callable[[dict[str, Any]], str]]] = {
    "bool": lambda _: "expected true or false",
    "string": lambda _: "expected text",
    "path": lambda _: "expected the path of a file",
    "dict": lambda _: 'expected a table; in the environment an object of JSON: {"name": "value"}',
    "tuple": lambda _: "expected a list of names",
    "enum": lambda about: f"expected {about['expected']}",
    "literal": lambda about: f"expected {about['expected']}",
    "greater_than_equal": lambda about: f"must be {about['ge']} or more",
    "greater_than": lambda about: f"must be more than {about['gt']}",
    "less_than_equal": lambda about: f"must be {about['le']} or less",
    "less_than": lambda about: f"must be less than {about['lt']}",
    "too_short": lambda _: "must name at least one",
    "value_error": lambda about: str(about["error"]),
    "finite_number": lambda _: "must be a finite number",
}


def explain(
    errors: list[ErrorDetails], given: Mapping[str, object], sources: Mapping[str, str]
) -> str:
    """Return one line for each invalid setting, with the source of its value (see `loading`).

    `given` are the values as they were written.
    """
    lines: dict[str, str] = {}
    for error in errors:
        name = str(error["loc"][0]) if error["loc"] else ""
        # The first says what is wrong; that a list without its wrong part is too short, follows.
        value = error["input"] if len(error["loc"]) > 1 else given.get(name, error["input"])
        lines.setdefault(name, _line(name, error, value, sources.get(name, "")))
    return "\n".join(lines.values())


def _line(name: str, error: ErrorDetails, value: object, source: str) -> str:
    where = f" ({source})" if source else ""
    got = "" if name in SECRETS else f", not {_shown(value)}"
    return f"setting '{name}'{where}: {_sentence(name, error)}{got}"


def _sentence(name: str, error: ErrorDetails) -> str:
    kind = error["type"]
    if kind.startswith(("int", "float")):
        return _expected_number(name, "whole number" if kind.startswith("int") else "number")
    for known in (kind, kind.partition("_")[0]):
        if known in SENTENCES:
            return SENTENCES[known](error.get("ctx", {}))
    return error["msg"]


def _expected_number(name: str, what: str) -> str:
    unit = unit_of(name)
    if unit == "bytes":
        return "expected a number of bytes or a size such as 64MiB or 1GB"
    if unit:
        return f"expected a {what} of {unit} or a duration such as 500ms, 30s or 2h"
    return "expected the number of a port" if name.endswith("port") else f"expected a {what}"


def _shown(value: object) -> str:
    text = value if isinstance(value, str) else str(getattr(value, "value", value))
    return f"'{text[:VALUE_CHARACTERS_MAX]}'"
