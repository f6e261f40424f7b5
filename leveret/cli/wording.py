"""Translation of a node's refusals into plain words.

Clients of RabbitMQ match on its texts, Erlang terms included; over AMQP and HTTP these stay as they
are. The command line prints sentences instead, and this is the only translation.
"""

from __future__ import annotations

import re
from difflib import get_close_matches
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

__all__ = ["in_words"]

TYPES = {
    "longstr": "text",
    "bool": "true or false",
    "table": "a table",
    "array": "a list",
    "void": "null",
    "timestamp": "a time",
    "double": "a fraction",
    "decimal": "a fraction",
    "binary": "bytes",
}
NUMBER = "a whole number"  # by whichever of the wire's types
BINARY = re.compile(r'<<(?:"((?:[^"\\]|\\.)*)"(?:/utf8)?)?>>')


def in_words(explanation: str) -> str:
    """Return a refusal as a sentence; one that is a sentence already stays as it is."""
    text = re.sub(r"^Validation failed\s+", "", explanation).strip()
    for pattern, words in PHRASES:
        text = re.sub(pattern, words, text)
    return BINARY.sub(lambda found: f"'{_unescaped(found[1] or '')}'", text)


def _unknown_settings(found: re.Match[str]) -> str:
    from leveret.core.settings.policy_settings import SETTINGS

    return "; ".join(_unknown(name, "policy setting", SETTINGS) for name in _keys(found[1]))


def _unknown_limits(found: re.Match[str]) -> str:
    return "; ".join(f"'{name}' is not a limit" for name in _keys(found[1])) + f" in {found[2]}"


def _unknown(name: str, kind: str, known: Mapping[str, object]) -> str:
    if name in known:
        return f"'{name}' is not a setting for policies of the operator"
    near = get_close_matches(name, known, 1)
    return f"'{name}' is not a {kind}" + (f"; did you mean '{near[0]}'?" if near else "")


def _keys(terms: str) -> list[str]:
    """Return the names of `{<<"name">>,value},…`."""
    return [_unescaped(name) for name in re.findall(r'\{<<"((?:[^"\\]|\\.)*)"(?:/utf8)?>>,', terms)]


def _unescaped(text: str) -> str:
    return text.replace('\\"', '"').replace("\\\\", "\\")


def _wrong_type(found: re.Match[str]) -> str:
    return f"it cannot be {TYPES.get(found[1], NUMBER)}"


def _expected(found: re.Match[str]) -> str:
    wanted = NUMBER if found[1] == "integer" else found[1]
    return f"expected {wanted}, got {TYPES.get(found[2], NUMBER)}"


def _queue_kind(found: re.Match[str]) -> str:
    return f": a {found[1]} queue does not take it" if found[1] != "stream" else ""


PHRASES: tuple[tuple[str, str | Callable[[re.Match[str]], str]], ...] = (
    (r"\[(.*)\] are not recognised policy settings", _unknown_settings),
    (r"Unrecognised terms \[(.*)\] in (.*)", _unknown_limits),
    (
        r'pattern should be regular expression but is invalid: \{"((?:[^"\\]|\\.)*)",(\d+)\}',
        r"the pattern is not a regular expression: \1 (at character \2)",
    ),
    (r"\{value_zero,0\}", "it must be above 0"),
    (r"\{value_negative,(-\d+)\}", r"\1 is below 0"),
    (r"\{(?:value_too_large|max_value_exceeded),(\d+)\}", r"\1 is too large"),
    (r"\{unacceptable_type,(\w+)\}", _wrong_type),
    (r'"expected (\w+), got (\w+)"', _expected),
    (r"\binvalid_max_age\b", "it is not a span such as 7D or 12h"),
    (r"\brouting_key_but_no_dlx_defined\b", "it needs x-dead-letter-exchange"),
    (r" of queue type rabbit_(classic|quorum|stream)_queue$", _queue_kind),
    (r': "([^"]*)"$', r": \1"),
)
