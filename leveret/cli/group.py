"""Base classes of all commands and groups of commands."""

from __future__ import annotations

import functools
import inspect
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import typer
from typer.core import TyperArgument, TyperCommand, TyperGroup, TyperOption

from leveret.cli.session import DataDir, Timeout, be_patient

if TYPE_CHECKING:
    from collections.abc import Callable

    Function = TypeVar("Function", bound=Callable[..., Any])

__all__ = ["CommandGroup", "Group"]

HELP_WIDTH_MAX = 110  # columns, where the terminal has as many


# Placeholders of values in help, where the command has no better word.
PLACEHOLDERS = {"str": "TEXT", "int": "NUMBER", "float": "NUMBER", "path": "PATH"}


# Texts for invalid values, in place of the validator's words.
MISTAKES = (
    (r"Input should be greater than or equal to (\S+)", r"it is at least \1"),
    (r"Input should be less than or equal to (\S+)", r"it is at most \1"),
    (r"Input should be a valid integer.*", "it is a whole number"),
    (r"Input should be a valid number.*", "it is a number"),
    (r"Value error, (.*)", r"\1"),
    (r"Input should be (.*)", r"it is \1"),
)


class Command(TyperCommand):
    """A command whose help shows arguments in the usual notation, NAME."""

    def get_params(self, ctx: Any) -> list[Any]:
        """Return the parameters, --help included."""
        return _converting_late(super().get_params(ctx))

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse the arguments. Raises typer.BadParameter in plain words."""
        try:
            return super().parse_args(ctx, args)
        except typer.BadParameter as error:
            error.message = _plain(error.message)
            raise

    def collect_usage_pieces(self, _: Any) -> list[str]:
        """Return the parts of the usage line, as in `[OPTIONS] QUEUE [IDS]...`."""
        pieces = [self.options_metavar or ""]
        pieces += [_usage(each) for each in self.params if isinstance(each, TyperArgument)]
        return pieces

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write the arguments and options into the help, each with its default."""
        shown: dict[str, list[tuple[str, str]]] = {"Arguments": [], "Options": []}
        for each in self.get_params(ctx):
            if isinstance(each, TyperOption) and each.metavar is None and not each.is_flag:
                each.metavar = _placeholder(each.display_type(ctx))
            record = each.get_help_record(ctx)
            if record is not None and isinstance(each, TyperArgument):
                kind = _placeholder(each.display_type(ctx))
                values = f" {kind}" if "|" in kind else ""
                shown["Arguments"].append((_argument(each) + values, record[1]))
            elif record is not None:
                shown["Options"].append(record)
        for heading, records in shown.items():
            if records:
                with formatter.section(heading):
                    formatter.write_dl(records)


class CommandGroup(TyperGroup):
    """A group whose own options are converted without pydantic, as those of `Command`."""

    def get_params(self, ctx: Any) -> list[Any]:
        """Return the parameters, --help included."""
        return _converting_late(super().get_params(ctx))


def _converting_late(parameters: list[Any]) -> list[Any]:
    """Wrap parameters so that they import pydantic only for values that need conversion."""
    for each in parameters:
        is_new = not isinstance(getattr(each.get_runtime_param, "__self__", None), _Conversion)
        if is_new and isinstance(each, TyperArgument | TyperOption):
            setattr(each, "get_runtime_param", _Conversion(each).get)  # noqa: B010  # a method
    return parameters


class _Conversion:
    """Converts values of one parameter to its type.

    Typer uses pydantic for that, which takes as long to import as all the rest of a command. Texts,
    paths and defaults need no conversion; for others the original method is used.
    """

    def __init__(self, parameter: TyperArgument | TyperOption) -> None:
        self._type = parameter.type_descriptor.annotation
        self._original = parameter.get_runtime_param

    def get(self) -> _Conversion:
        """Return itself, in place of the parameter's own method."""
        return self

    def coerce(self, value: Any, param: Any, ctx: Any) -> Any:
        """Convert a value from the command line, the environment or the default."""
        if value is None:
            return () if param.multiple or param.nargs == -1 else None
        if self._type is str or (isinstance(self._type, type) and isinstance(value, self._type)):
            return value
        if self._type == list[str]:
            return list(value)
        if self._type is Path:
            return Path(value)
        return self._original().coerce(value, param=param, ctx=ctx)


def _plain(message: str) -> str:
    for pattern, words in MISTAKES:
        message, found = re.subn(pattern, words, message)
        if found:
            break
    return message


def _argument(argument: TyperArgument) -> str:
    return argument.metavar or str(argument.name).rstrip("_").replace("_", "-").upper()


def _usage(argument: TyperArgument) -> str:
    name = _argument(argument)
    several = "" if argument.nargs == 1 else "..."
    return f"{name if argument.required else f'[{name}]'}{several}"


def _placeholder(type_: str) -> str:
    """Return TEXT for `<list[str]>`, NUMBER for `<int range>`; choices as they are."""
    name = type_.strip("<>").removeprefix("list[").removesuffix("]").removesuffix(" range")
    return PLACEHOLDERS.get(name, name)


class Group(typer.Typer):
    """Commands on one kind of object, `leveret THING VERB`.

    Help is plain text: rich takes `[default: 5672]` for markup and shows nothing of it, draws boxes
    into pipes and costs a tenth of a second. Commands that query a node have --timeout.
    """

    def __init__(self, help_: str | None = None, **settings: Any) -> None:
        super().__init__(
            help=help_,
            no_args_is_help=True,
            rich_markup_mode=None,
            cls=settings.pop("cls", CommandGroup),
            pretty_exceptions_enable=False,  # logs want plain tracebacks without local variables
            context_settings={"max_content_width": HELP_WIDTH_MAX},
            **settings,
        )

    def command(self, name: str | None = None, **settings: Any) -> Callable[[Function], Function]:
        """Register a command as Typer does; those on a data directory get the option --timeout."""
        register = super().command(name, cls=Command, **settings)

        def decorate(function: Function) -> Function:
            register(_with_timeout(function))
            return function

        return decorate


def _with_timeout(function: Callable[..., Any]) -> Callable[..., Any]:
    signature = inspect.signature(function, eval_str=True)
    if all(each.annotation != DataDir for each in signature.parameters.values()):
        return function

    @functools.wraps(function)
    def command(*arguments: Any, timeout: float | None, **options: Any) -> Any:
        be_patient(timeout)
        return function(*arguments, **options)

    option = inspect.Parameter(
        "timeout", inspect.Parameter.KEYWORD_ONLY, default=None, annotation=Timeout
    )
    parameters = [*signature.parameters.values(), option]
    # `inspect`, and so Typer, reads this before it looks at the function itself.
    command.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
    command.__annotations__ = {each.name: each.annotation for each in parameters}
    return command
