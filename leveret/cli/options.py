"""Commands whose options are the fields of a dataclass, for sharing between commands."""

from __future__ import annotations

import inspect
from dataclasses import fields
from typing import TYPE_CHECKING, Any, get_type_hints

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["option_parameters", "with_options_of"]


def option_parameters(*options: type[Any]) -> list[inspect.Parameter]:
    """Return the fields of dataclasses as parameters.

    They are annotated as Typer's parameters are, and have defaults.
    """
    return [
        inspect.Parameter(
            each.name,
            inspect.Parameter.KEYWORD_ONLY,
            default=each.default,
            annotation=get_type_hints(kind, include_extras=True)[each.name],
        )
        for kind in options
        for each in fields(kind)
    ]


def with_options_of(options: type[Any]) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Give a command every field of the dataclass `options` in place of its `**` parameter."""

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        own = inspect.signature(command, eval_str=True).parameters.values()
        parameters = option_parameters(options)
        parameters += [each for each in own if each.kind is not inspect.Parameter.VAR_KEYWORD]
        # `inspect`, and so Typer, reads this before it looks at the function itself.
        command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        return command

    return decorate
