"""Validation of a message's `expiration`: milliseconds, as decimal digits in a short string."""

from __future__ import annotations

import re

from leveret.core.erlang_terms import charlist

NUMBER = re.compile(rb"[+-]?[0-9]+")
# The limit of RabbitMQ's timers, whose errors these are: 49 days.
EXPIRATION_MS_MAX = 2**32 - 1


def expiration_fault(text: bytes) -> str | None:
    """Return why `text` is no expiration, as the term of reply texts; None if it is valid."""
    found = NUMBER.match(text)
    if found is None:
        return "no_integer"
    if rest := text[found.end() :]:
        return f"{{leftover_string,{charlist(rest)}}}"
    milliseconds = int(found[0])
    if milliseconds < 0:
        return f"{{value_negative,{milliseconds}}}"
    if milliseconds > EXPIRATION_MS_MAX:
        return f"{{value_too_large,{milliseconds}}}"
    return None
