"""Changes of definitions as nodes send them to the controller, and its answers: JSON.

    {"change": "DeclareQueue", "fields": {…}, "actor": "guest", "asked_by": [node, session, name]}
    {"sequence": 17, "name": "q", "message_count": 0}
    {"refused": "channel", "code": 406, "text": "inequivalent arg …"}

Field tables are written as in the definitions of the coordinator, and so are definitions.
"""

from __future__ import annotations

import json
from dataclasses import fields
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from leveret.errors import (
    REPLY_NAMES,
    AmqpError,
    ChannelError,
    ConnectionClosingError,
    LeveretError,
    StorageError,
)
from leveret.ports.definition_changes import (
    AddBinding,
    AddQueue,
    ChangeOutcome,
    DeclareExchange,
    DeclareQueue,
    DeleteExchange,
    DeleteQueue,
    DropDefinition,
    KeepDefinition,
    RemoveBinding,
    RemoveQueue,
)
from leveret.ports.definitions import BindingDefinition, Home, QueueDefinition
from leveret.replication.cluster_definitions import (
    decode_definition,
    definition_key,
    encode_definition,
)
from leveret.storage.tagged_json import decode_arguments, encode_arguments

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from leveret.ports.definition_changes import DefinitionChange
    from leveret.ports.definitions import Definition

__all__ = [
    "ChangeMessageError",
    "ChangeRequest",
    "NotControllingError",
    "WrittenChange",
    "pack_answer",
    "pack_refusal",
    "pack_request",
    "parse_answer",
    "parse_request",
]

KINDS: Final[dict[str, type[DefinitionChange]]] = {
    kind.__name__: kind
    for kind in (
        AddBinding,
        AddQueue,
        DeclareExchange,
        DeclareQueue,
        DeleteExchange,
        DeleteQueue,
        DropDefinition,
        KeepDefinition,
        RemoveBinding,
        RemoveQueue,
    )
}


class ChangeMessageError(LeveretError):
    """The other node has sent what makes no sense."""


class NotControllingError(LeveretError):
    """The node that was asked is not the controller, or not any more: nothing was changed."""


class ChangeRequest(NamedTuple):
    """A change, the user that wants it, and the connection that asks for it."""

    change: DefinitionChange
    actor: str
    asked_by: Home


class WrittenChange(NamedTuple):
    """A change that was made. A node has it that has come to `sequence`."""

    sequence: int
    outcome: ChangeOutcome


def pack_request(request: ChangeRequest) -> bytes:
    """Return a request as it is sent."""
    change = request.change
    told = {each.name: _told(getattr(change, each.name)) for each in fields(change)}
    return _packed(
        {
            "change": type(change).__name__,
            "fields": told,
            "actor": request.actor,
            "asked_by": request.asked_by,
        }
    )


def _packed(message: Mapping[str, object]) -> bytes:
    return json.dumps(message, separators=(",", ":")).encode()


def _told(value: Any) -> object:
    match value:
        case str() | bool() | None | Home():
            return value
        case dict():
            return encode_arguments(value)
    return [definition_key(value), encode_definition(value).decode()]


def parse_request(payload: memoryview) -> ChangeRequest:
    """Return a request that another node has sent. Raises ChangeMessageError."""
    message = _message(payload)
    try:
        kind = KINDS[_text(message["change"])]
        told = message["fields"]
        values = {each.name: PARSERS[str(each.type)](told[each.name]) for each in fields(kind)}
        actor, asked_by = _text(message["actor"]), _home(message["asked_by"])
    except (KeyError, TypeError, ValueError, ArithmeticError) as error:
        raise ChangeMessageError(f"no change of definitions: {error!r}") from error
    return ChangeRequest(kind(**values), actor, asked_by)


def _message(payload: memoryview) -> dict[str, Any]:
    try:
        message = json.loads(bytes(payload))
    except (ValueError, RecursionError) as error:
        raise ChangeMessageError(f"a message is no JSON: {error!r}") from error
    if not isinstance(message, dict):
        raise ChangeMessageError("a message is no JSON object")
    return message


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{value!r} is no text")
    return value


def _flag(value: object) -> bool:
    if not isinstance(value, bool):
        raise TypeError(f"{value!r} is no boolean")
    return value


def _number(value: object) -> int:
    if not isinstance(value, int) or isinstance(value, bool):
        raise TypeError(f"{value!r} is no integer")
    return value


def _home(value: Any) -> Home:
    node, session, connection = value
    return Home(_number(node), _number(session), _text(connection))


def _definition(value: Any) -> Definition:
    key, encoded = map(_text, value)
    definition = decode_definition(key, encoded.encode())
    for each in fields(definition):
        check = CHECKS.get(str(each.type))
        if check is not None:
            check(getattr(definition, each.name))
    return definition


def _queue(value: Any) -> QueueDefinition:
    definition = _definition(value)
    if not isinstance(definition, QueueDefinition):
        raise TypeError("no queue")
    return definition


def _binding(value: Any) -> BindingDefinition:
    definition = _definition(value)
    if not isinstance(definition, BindingDefinition):
        raise TypeError("no binding")
    return definition


CHECKS: Final[dict[str, Callable[[object], object]]] = {
    "str": _text,
    "bool": _flag,
    "int": _number,
}
# By the type of a field of a change.
PARSERS: Final[dict[str, Callable[[Any], Any]]] = {
    "str": _text,
    "bool": _flag,
    "Arguments": lambda value: decode_arguments(_text(value)),
    "Home | None": lambda value: None if value is None else _home(value),
    "Definition": _definition,
    "QueueDefinition": _queue,
    "BindingDefinition": _binding,
}


# -- answers


def pack_answer(written: WrittenChange) -> bytes:
    """Return the answer for a change that was made."""
    return _packed({"sequence": written.sequence, **written.outcome._asdict()})


def pack_refusal(error: AmqpError | StorageError | NotControllingError) -> bytes:
    """Return the answer for a change that was not made."""
    if isinstance(error, NotControllingError):
        return _packed({"refused": "not controller"})
    if isinstance(error, StorageError):
        return _packed({"refused": "storage", "text": str(error)})
    whole = "connection" if isinstance(error, ConnectionClosingError) else "channel"
    return _packed({"refused": whole, "code": error.code, "text": error.explanation})


def parse_answer(payload: memoryview) -> WrittenChange:
    """Return what was done.

    Raises the error with which it was refused, NotControllingError, and ChangeMessageError.
    """
    message = _message(payload)
    try:
        if "refused" in message:
            raise _refusal(message)
        outcome = ChangeOutcome(_text(message["name"]), _number(message["message_count"]))
        return WrittenChange(_number(message["sequence"]), outcome)
    except (KeyError, TypeError, ValueError) as error:
        raise ChangeMessageError(f"no answer to a change of definitions: {error!r}") from error


def _refusal(message: Mapping[str, Any]) -> LeveretError:
    if message["refused"] == "not controller":
        return NotControllingError("the node is not the controller")
    text = _text(message["text"])
    if message["refused"] == "storage":
        return StorageError(text)
    code = _number(message["code"])
    if code not in REPLY_NAMES:
        return ChangeMessageError(f"a refusal with the unknown code {code}")
    kind = {"channel": ChannelError, "connection": ConnectionClosingError}[message["refused"]]
    return kind(code, text)
