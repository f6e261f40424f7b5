"""Differences between an existing queue or exchange and a document of definitions.

An import leaves both unchanged, since messages depend on them, and reports the differences.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final

from leveret.core.erlang_terms import frozen
from leveret.core.json_fields import plain
from leveret.core.settings.arguments import QUEUE_TYPE
from leveret.ports.definitions import ExchangeDefinition, QueueDefinition
from leveret.ports.log_text import one_line, quoted

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from leveret.ports.definitions import Arguments

__all__ = ["difference"]

NAMED_MAX: Final = 5  # differences listed of one queue
VALUE_CHARACTERS_MAX: Final = 100  # of a value that is shown
MISSING: Final = object()


def difference(
    held: QueueDefinition | ExchangeDefinition, stated: QueueDefinition | ExchangeDefinition
) -> str | None:
    """Return a sentence on the differences, or None.

    Properties optional in a document, such as aliases and a pause, are compared only if given.
    """
    if isinstance(held, QueueDefinition):
        assert isinstance(stated, QueueDefinition)
        kind, found = "queue", list(_of_queue(held, stated))
    else:
        assert isinstance(stated, ExchangeDefinition)
        kind, found = "exchange", list(_of_exchange(held, stated))
    if not found:
        return None
    more = len(found) - NAMED_MAX
    named = "; ".join(found[:NAMED_MAX]) + (f"; and {more} more" if more > 0 else "")
    name = f"{kind} {quoted(stated.name)} in vhost {quoted(stated.vhost)}"
    return f"{name} stays as it is: {named}"


def _of_queue(held: QueueDefinition, stated: QueueDefinition) -> Iterator[str]:
    if held.name != stated.name:
        yield f"it is called {quoted(held.name)} now"
    old, new = _typed(held.arguments), _typed(stated.arguments)
    yield from _of_value("type", old.pop(QUEUE_TYPE), new.pop(QUEUE_TYPE))
    for flag in ("durable", "exclusive", "auto_delete"):
        yield from _of_value(flag, getattr(held, flag), getattr(stated, flag))
    yield from _of_arguments(old, new)
    if stated.paused:
        yield from _of_value("paused", str(held.paused), str(stated.paused))
    names = {held.name, *held.aliases}
    if not names.issuperset(stated.aliases):
        yield from _of_value("aliases", held.aliases, stated.aliases)


def _typed(arguments: Arguments) -> Arguments:
    """Return the arguments with the queue's type, which may be left out if it is classic."""
    return {QUEUE_TYPE: "classic", **arguments}


def _of_exchange(held: ExchangeDefinition, stated: ExchangeDefinition) -> Iterator[str]:
    for field in ("type", "durable", "auto_delete", "internal"):
        yield from _of_value(field, getattr(held, field), getattr(stated, field))
    yield from _of_arguments(held.arguments, stated.arguments)


def _of_arguments(held: Mapping[str, Any], stated: Mapping[str, Any]) -> Iterator[str]:
    """Yield differences of arguments, compared as documents have them after an export."""
    for key in dict.fromkeys([*stated, *held]):
        yield from _of_value(one_line(key), held.get(key, MISSING), stated.get(key, MISSING))


def _of_value(name: str, held: object, stated: object) -> Iterator[str]:
    if held is MISSING:
        yield f"{name} is not set, the document says {_shown(stated)}"
    elif stated is MISSING:
        yield f"{name} is {_shown(held)}, the document does not set it"
    elif frozen(plain(held)) != frozen(plain(stated)):
        yield f"{name} is {_shown(held)}, the document says {_shown(stated)}"


def _shown(value: object) -> str:
    """Return a value for display: a word as it is, all else in JSON."""
    text = json.dumps(plain(value), ensure_ascii=False)
    if isinstance(value, str) and value.isidentifier():
        text = value
    cut = "…" if len(text) > VALUE_CHARACTERS_MAX else ""
    return one_line(text, VALUE_CHARACTERS_MAX) + cut
