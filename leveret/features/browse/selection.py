"""Message filters and changes of messages, parsed from JSON.

A message must satisfy all criteria of a selection:

    offsets, message_ids   lists                    headers           {"name": "value"}, as typed
    state                  see MessageState         text              somewhere in the body
    exchange, routing_key  text                     tags, sql         expressions, as consumers have
    since, until           ms since 1970, of coming into the queue
"""

from __future__ import annotations

from base64 import b64decode
from binascii import Error as Base64Error
from typing import TYPE_CHECKING, Any, Final

from leveret.core.definitions.administration import AdministrationError
from leveret.core.json_fields import InvalidFieldError, field_of, table_of
from leveret.features.browse.editing import Changes
from leveret.features.browse.message_filter import MessageFilter, MessageState
from leveret.features.filters.rules import FILTER_CHECKS, FILTER_SQL, FILTER_TAGS, record_filter
from leveret.ports.declared import undeclared
from leveret.ports.ranges import RangeSet

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["changes_of", "message_filter_of"]

CHOSEN_MAX = 10_000  # offsets or ids of one request
HEADERS_MAX = 100
TEXT_BYTES_MAX = 4096
CHANGED_BYTES_MAX = 16 * 1024 * 1024  # of a body that was edited
CHANGEABLE = {"payload", "payload_encoding", "routing_key", "headers", "properties"}


def message_filter_of(select: dict[str, Any]) -> MessageFilter:
    """Return the message filter of a selection. Raises AdministrationError."""
    if problem := undeclared(select, _SELECTION):
        raise AdministrationError("invalid", f"select: {problem}")
    for name, value in select.items():
        if not _SELECTION[name](value):
            raise AdministrationError("invalid", f"bad criterion '{name}'")
    state, offsets = select.get("state"), select.get("offsets")
    text: str | None = select.get("text")
    return MessageFilter(
        offsets=None if offsets is None else RangeSet((at, at + 1) for at in offsets),
        message_ids=frozenset(select.get("message_ids", ())),
        states=frozenset() if state is None else frozenset({MessageState(state)}),
        exchange=_encoded(select.get("exchange")),
        routing_key=_encoded(select.get("routing_key")),
        headers=tuple(select.get("headers", {}).items()),
        text=_encoded(text),
        since_ms=select.get("since"),
        until_ms=select.get("until"),
        filter=record_filter(_filter_arguments(select)),
    )


def _filter_arguments(select: dict[str, Any]) -> dict[str, Any]:
    names = {"tags": FILTER_TAGS, "sql": FILTER_SQL}
    arguments = {names[name]: value for name, value in select.items() if name in names}
    for key, value in arguments.items():
        problem = FILTER_CHECKS[key](value, arguments)
        if problem is not None:
            raise AdministrationError("invalid", problem)
    return arguments


def _encoded(text: str | None) -> bytes | None:
    return None if text is None else text.encode()


def _is_text(value: object) -> bool:
    if not isinstance(value, str) or len(value) > TEXT_BYTES_MAX:
        return False
    return not any("\ud800" <= character <= "\udfff" for character in value)


def _is_number(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 1 << 62


def _is_list_of(kind: Callable[[object], bool]) -> Callable[[object], bool]:
    return lambda value: (
        isinstance(value, list) and len(value) <= CHOSEN_MAX and all(map(kind, value))
    )


def _are_headers(value: object) -> bool:
    return (
        isinstance(value, dict)
        and len(value) <= HEADERS_MAX
        and all(isinstance(name, str) and isinstance(text, str) for name, text in value.items())
    )


_SELECTION: Final[dict[str, Callable[[object], bool]]] = {
    "offsets": _is_list_of(_is_number),
    "message_ids": _is_list_of(_is_text),
    "state": lambda value: isinstance(value, str) and value in set(MessageState),
    "exchange": _is_text,
    "routing_key": _is_text,
    "headers": _are_headers,
    "text": _is_text,
    "since": _is_number,
    "until": _is_number,
    "tags": _is_text,
    "sql": _is_text,
}


def changes_of(asked: dict[str, Any]) -> Changes:
    """Return the changes to make to a message. Raises AdministrationError."""
    if problem := undeclared(asked, CHANGEABLE):
        raise AdministrationError("invalid", problem)
    if not asked:
        raise AdministrationError("invalid", "state payload, routing_key, headers or properties")
    for name, kind in (("routing_key", str), ("headers", dict), ("properties", dict)):
        if not isinstance(asked.get(name), (kind, type(None))):
            raise AdministrationError("invalid", f"bad change '{name}'")
    try:
        headers, properties = map(_table, (asked.get("headers"), asked.get("properties")))
        key = field_of(asked.get("routing_key"))
    except InvalidFieldError as error:
        raise AdministrationError("invalid", f"bad change: {error.problem}") from None
    return Changes(_body(asked), key, headers, properties)


def _table(value: dict[str, Any] | None) -> dict[str, Any] | None:
    return None if value is None else table_of(value)


def _body(asked: dict[str, Any]) -> bytes | None:
    text, encoding = asked.get("payload"), asked.get("payload_encoding", "string")
    if text is None:
        return None
    if not isinstance(text, str) or encoding not in {"string", "base64"}:
        raise AdministrationError("invalid", "a payload is text, as string or base64")
    try:
        body = b64decode(text, validate=True) if encoding == "base64" else text.encode()
    except (Base64Error, ValueError):
        raise AdministrationError("invalid", "the payload is not what its encoding says") from None
    if len(body) > CHANGED_BYTES_MAX:
        raise AdministrationError("invalid", f"a payload has at most {CHANGED_BYTES_MAX} bytes")
    return body
