"""Admin commands: each is one function, whose keyword parameters are the command's.

    @command("policy.clear", POLICYMAKER)
    async def _clear(node: AdminNode, *, vhost: str, name: str, operator: bool) -> None:

A `command` changes something and is written into the audit log, unless it is an application's daily
work; a `query` only looks. All interfaces find them in the registry by their names, `thing.verb`,
and send JSON. What comes is checked by a model that is made from the function's parameters: nothing
is converted, nothing unknown is accepted, and a parameter without a value is None where that is
allowed.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from types import UnionType
from typing import (
    Annotated,
    Any,
    Concatenate,
    Final,
    Generic,
    Literal,
    ParamSpec,
    TypeAlias,
    TypeVar,
    Union,
    get_args,
    get_origin,
    get_type_hints,
)

from pydantic import AfterValidator, BaseModel, ConfigDict, ValidationError, create_model

from leveret.core.admin.rights import ADMINISTRATOR, Right
from leveret.core.definitions.administration import AdministrationError
from leveret.ports.declared import suggestion, undeclared

__all__ = ["COMMANDS", "AdminCommand", "AnyCommand", "command", "named", "query"]

INTEGER_MAX: Final = (1 << 63) - 1  # no clock, offset or store has more
WORDS: Final = {
    str: "text",
    int: "a whole number",
    float: "a number",
    bool: "true or false",
    list: "a list",
    dict: "an object",
    Any: "valid JSON",
}

N_contra = TypeVar("N_contra", contravariant=True)  # what a command needs of a node
P = ParamSpec("P")
R = TypeVar("R")
Handler: TypeAlias = Callable[Concatenate[N_contra, P], Awaitable[R]]


@dataclass(frozen=True)
class AdminCommand(Generic[N_contra, P, R]):
    """A command by its name. One that `changes` something waits until that is durable."""

    name: str
    handler: Handler[N_contra, P, R]
    changes: bool
    is_audited: bool
    right: Right

    async def __call__(self, node: N_contra, *args: P.args, **parameters: P.kwargs) -> R:
        """Return the result. Raises what the function raises."""
        return await self.handler(node, *args, **parameters)

    async def run(self, node: N_contra, values: Mapping[str, Any]) -> R:
        """Return the result for checked values."""
        names = {name.rstrip("_"): name for name in self._keywords}
        handler: Callable[..., Awaitable[R]] = self.handler
        return await handler(node, **{names[key]: value for key, value in values.items()})

    def checked(self, parameters: Mapping[str, object]) -> dict[str, Any]:
        """Return a value for each parameter. Raises AdministrationError if any does not fit."""
        if problem := undeclared(parameters, self.parameters):
            raise AdministrationError("invalid", f"{self.name}: {problem}")
        try:
            return vars(self._model.model_validate(parameters))
        except ValidationError as error:
            found = error.errors()[0]
            name = str(found["loc"][0])
            match found["type"]:
                case "missing":
                    problem = "missing"
                case "value_error":  # of _fits
                    problem = str(found["ctx"]["error"])
                case _:
                    problem = _wanted(self.parameters[name])
            raise AdministrationError("invalid", f"{self.name}: {name} is {problem}") from None

    @cached_property
    def parameters(self) -> dict[str, Any]:
        """Types of the parameters, by the names in requests."""
        return {name.rstrip("_"): kind for name, kind in self._keywords.items()}

    @cached_property
    def _keywords(self) -> dict[str, Any]:
        """Types of the parameters, by the names in the function: `id_` for `id`."""
        return _keywords(self.handler)

    @cached_property
    def _model(self) -> type[BaseModel]:
        fields: dict[str, Any] = {
            name: (Annotated[kind, AfterValidator(_fits)], None if _may_be_none(kind) else ...)
            for name, kind in self.parameters.items()
        }
        return create_model(self.name, __config__=ConfigDict(strict=True), **fields)


AnyCommand: TypeAlias = AdminCommand[Any, ..., Any]
COMMANDS: Final[dict[str, AnyCommand]] = {}


def command(
    name: str, right: Right = ADMINISTRATOR, *, is_audited: bool = True
) -> Callable[[Handler[N_contra, P, R]], AdminCommand[N_contra, P, R]]:
    """Register a function as a command that changes something."""
    return _registered(name, right, changes=True, is_audited=is_audited)


def query(
    name: str, right: Right = ADMINISTRATOR, *, is_audited: bool = False
) -> Callable[[Handler[N_contra, P, R]], AdminCommand[N_contra, P, R]]:
    """Register a function as a command that changes nothing; a telling one is audited."""
    return _registered(name, right, changes=False, is_audited=is_audited)


def _registered(
    name: str, right: Right, *, changes: bool, is_audited: bool
) -> Callable[[Handler[N_contra, P, R]], AdminCommand[N_contra, P, R]]:
    def decorate(handler: Handler[N_contra, P, R]) -> AdminCommand[N_contra, P, R]:
        made = AdminCommand(name, handler, changes, is_audited, right)
        COMMANDS[name] = made
        return made

    return decorate


def named(name: str) -> AnyCommand:
    """Return a command. Raises AdministrationError for an unknown name."""
    found = COMMANDS.get(name)
    if found is None:
        close = suggestion(name, COMMANDS)
        raise AdministrationError("invalid", f"unknown operation {name!r}{close}")
    return found


def _keywords(handler: Callable[..., Any]) -> dict[str, Any]:
    """Return the types of a function's keyword parameters, those of an unpacked dict included."""
    kinds: dict[str, Any] = {}
    for parameter in inspect.signature(handler).parameters.values():
        if parameter.kind is inspect.Parameter.POSITIONAL_OR_KEYWORD:
            continue
        kind = eval(parameter.annotation, handler.__globals__)  # noqa: S307  # our own source
        if parameter.kind is inspect.Parameter.VAR_KEYWORD:
            kinds |= get_type_hints(*get_args(kind))
        else:
            kinds[parameter.name] = kind
    return kinds


def _may_be_none(kind: Any) -> bool:
    return kind is Any or type(None) in get_args(kind)


def _wanted(kind: Any) -> str:
    """Return what a value of a type is, for an error text."""
    of = [each for each in get_args(kind) if each is not type(None)]
    origin = get_origin(kind)
    if origin in {UnionType, Union}:
        return " or ".join(map(_wanted, of))
    if origin is Literal:
        return " or ".join(map(repr, of))
    if origin is list and of:
        return f"a list, each item {_wanted(of[0])}"
    if origin is dict and len(of) > 1:
        return f"an object, each value {_wanted(of[1])}"
    return WORDS.get(origin or kind, "of another kind")


def _fits(value: Any) -> Any:
    """Return a value. Raises ValueError for numbers and text that neither disk nor wire can hold.

    JSON allows halves of characters, and any number of digits.
    """
    for each in value if isinstance(value, list) else [value]:
        if type(each) is int and not -INTEGER_MAX <= each <= INTEGER_MAX:
            raise ValueError("a number of more than 64 bits")
        if isinstance(each, str) and any("\ud800" <= character <= "\udfff" for character in each):
            raise ValueError("no valid Unicode text")
    return value
