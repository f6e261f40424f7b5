"""Base classes of all commands and groups of commands."""

from __future__ import annotations

import functools
import inspect
import re
from dataclasses import fields
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias, TypeVar

import typer
from typer.core import TyperArgument, TyperCommand, TyperGroup, TyperOption

from leveret.cli.listing import Cut, Listing, Source, asked, show_list, whole
from leveret.cli.options import option_parameters
from leveret.cli.output import show_done, show_warnings
from leveret.cli.session import DATA_DIR, Invocation, ask, begin
from leveret.cli.values import Sent, show_count, show_one

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    Function = TypeVar("Function", bound=Callable[..., Any])

__all__ = ["JSON", "KEYS", "NODE", "CommandGroup", "Group", "with_common", "with_json", "with_keys"]

# Options that commands have in common: their types, and defaults.
COMMON: dict[str, tuple[Any, object]] = {
    "key_file": (
        Annotated[
            Path | None,
            typer.Option(
                "--key-file",
                envvar="LEVERET_ENCRYPTION_KEY_FILE",
                help="File with the master key, where the node is stopped.",
            ),
        ],
        None,
    ),
    "data_dir": (
        Annotated[
            Path,
            typer.Option(
                "--data-dir", envvar="LEVERET_DATA_DIR", help="The node's data directory."
            ),
        ],
        DATA_DIR,
    ),
    "as_json": (Annotated[bool, typer.Option("--json", help="Print JSON.")], False),
    "timeout": (
        Annotated[
            float | None,
            typer.Option(
                "--timeout",
                metavar="SECONDS",
                help="How long to wait for each answer of the node.  "
                "[default: 60 in most commands]",
            ),
        ],
        None,
    ),
}
Common: TypeAlias = tuple[str, ...]
KEYS: Common = ("key_file", "data_dir", "as_json", "timeout")  # of commands about keys
NODE: Common = ("data_dir", "as_json", "timeout")  # of commands about a node
JSON: Common = ("as_json",)  # of others that print results
SENT_AS_IT_IS = Sent(lambda value: value.value if isinstance(value, Enum) else value)

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
        words = [self.options_metavar or ""]
        words += [_usage(each) for each in self.params if isinstance(each, TyperArgument)]
        return words

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
    into pipes and costs a tenth of a second.

    Most commands are declared: `change`, `count`, `show` and `list` register a function without a
    body. Its parameters are those of the node's operation, its docstring is the help.
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

    def command(  # type: ignore[override]  # names are stated, and have aliases
        self, name: str, *, also: tuple[str, ...] = (), common: Common = NODE, **settings: Any
    ) -> Callable[[Function], Function]:
        """Register a command under its name and hidden ones, with `common` options."""

        def decorate(function: Function) -> Function:
            for each in (name, *also):
                register = super(Group, self).command(
                    each, cls=Command, hidden=each != name, **settings
                )
                register(with_common(function, common))
            return function

        return decorate

    def change(
        self,
        name: str,
        operation: str,
        done: str,
        *,
        also: tuple[str, ...] = (),
        common: Common = NODE,
        **fixed: object,
    ) -> Callable[[Function], Function]:
        """Register a command that sends its parameters and reports `done`, a format of them."""

        def show(result: Any, stated: dict[str, Any]) -> None:
            if isinstance(result, dict):
                show_warnings(result["warnings"])
            show_done(done.format(**fixed, **stated, result=result))

        return self._declared(name, operation, show, also=also, common=common, fixed=fixed)

    def count(
        self, name: str, operation: str, done: str, *, selects: bool = False
    ) -> Callable[[Function], Function]:
        """Register a command that reports how many messages were `done`.

        One that `selects` messages, without --all, fails where there are none.
        """
        return self._declared(
            name,
            operation,
            lambda count, stated: show_count(
                count, done.format(**stated), selected=selects and not stated.get("all_")
            ),
        )

    def show(self, name: str, operation: str) -> Callable[[Function], Function]:
        """Register a command that shows one object."""
        return self._declared(name, operation, lambda fields, _: show_one(fields))

    def list(
        self,
        operation: str,
        columns: list[str],
        *,
        name: str = "list",
        options: type[Cut] = Listing,
        paged: bool = False,
        fixed: Mapping[str, object] | None = None,
        **presented: Any,
    ) -> Callable[[Function], Function]:
        """Register a command that shows a list; a `paged` one comes from the node page by page.

        `options` are those of the list, `presented` the keywords of `show_list`.
        """

        def decorate(function: Function) -> Function:
            send = _sender(function)

            def command(**stated: Any) -> None:
                shaping = {each.name: stated.pop(each.name) for each in fields(options)}
                parameters = {**send(stated), **(fixed or {})}
                if not paged:
                    source = whole(ask(operation, **parameters))
                elif options is Listing:
                    source = asked(operation, shaping, **parameters)
                else:
                    source = Source(
                        lambda count, after: ask(operation, limit=count, after=after, **parameters)
                    )
                show_list(source, columns, shaping, **presented)

            self.command(name)(_like(function, command, options))
            return function

        return decorate

    def _declared(
        self,
        name: str,
        operation: str,
        show: Callable[[Any, dict[str, Any]], None],
        *,
        also: tuple[str, ...] = (),
        common: Common = NODE,
        fixed: Mapping[str, object] | None = None,
    ) -> Callable[[Function], Function]:
        def decorate(function: Function) -> Function:
            send = _sender(function)

            def command(**stated: Any) -> None:
                show(ask(operation, **send(stated), **(fixed or {})), stated)

            self.command(name, also=also, common=common)(_like(function, command))
            return function

        return decorate


def _sender(function: Callable[..., Any]) -> Callable[[dict[str, Any]], dict[str, Any]]:
    """Return a function from the values of parameters to those of the node's operation."""
    conversions = {}
    for name, parameter in inspect.signature(function, eval_str=True).parameters.items():
        metadata = getattr(parameter.annotation, "__metadata__", ())
        sent = next((each for each in metadata if isinstance(each, Sent)), SENT_AS_IT_IS)
        conversions[name] = (sent.name or name.rstrip("_"), sent.convert)

    def send(stated: dict[str, Any]) -> dict[str, Any]:
        return {conversions[name][0]: conversions[name][1](value) for name, value in stated.items()}

    return send


def _like(
    function: Callable[..., Any], command: Callable[..., None], *options: type[Any]
) -> Callable[..., None]:
    """Return a command with the name, help and parameters of a function, after those options."""
    functools.update_wrapper(command, function)
    own = [*inspect.signature(function, eval_str=True).parameters.values()]
    return _with_parameters(command, [*option_parameters(*options), *own])


def with_common(function: Callable[..., Any], common: Common = NODE) -> Callable[..., Any]:
    """Return a command that has common options, too, as the session's invocation."""
    signature = inspect.signature(function, eval_str=True)

    @functools.wraps(function)
    def command(*arguments: Any, **options: Any) -> Any:
        begin(Invocation(**{name: options.pop(name) for name in common}))
        return function(*arguments, **options)

    added = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=kind)
        for name, (kind, default) in COMMON.items()
        if name in common
    ]
    return _with_parameters(command, [*signature.parameters.values(), *added])


def with_json(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a command that has the option --json alone."""
    return with_common(function, JSON)


def with_keys(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a command about a node that may need the master key, too."""
    return with_common(function, KEYS)


def _with_parameters(
    command: Callable[..., Any], parameters: Sequence[inspect.Parameter]
) -> Callable[..., Any]:
    # `inspect`, and so Typer, reads this before it looks at the function itself.
    command.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
        [each.replace(kind=inspect.Parameter.KEYWORD_ONLY) for each in parameters]
    )
    command.__annotations__ = {each.name: each.annotation for each in parameters}
    return command
