"""Exchange type `headers`: a binding's arguments against a message's headers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from leveret.core.exchanges.router import KeyRouter
from leveret.core.filtering.arguments import FILTER_SQL, FILTER_TAGS
from leveret.core.terms import field_type, frozen, term
from leveret.errors import ChannelError

if TYPE_CHECKING:
    from collections.abc import Hashable

    from leveret.core.routing.bindings import Binding
    from leveret.core.routing.message import Message
    from leveret.ports.definitions import Arguments

# What a binding's arguments say beside the headers that they compare.
NOT_COMPARED = ("x-match", FILTER_TAGS, FILTER_SQL)
MODES = ("all", "any", "all-with-x", "any-with-x")


class Condition:
    """The arguments of one binding, read once."""

    __slots__ = ("any", "present", "values")

    def __init__(self, arguments: Arguments) -> None:
        mode = arguments.get("x-match", "all")
        self.any = mode in ("any", "any-with-x")
        self.present: list[str] = []
        self.values: dict[str, Hashable] = {}
        for key, value in arguments.items():
            if key in NOT_COMPARED or (key.startswith("x-") and mode in ("all", "any")):
                continue
            if value is None:  # no value: the header's presence is enough
                self.present.append(key)
            else:
                self.values[key] = comparable(value)

    def holds(self, headers: dict[str, Hashable]) -> bool:
        """Tell whether a message fits; without conditions, `all` always does and `any` never."""
        facts = (
            *(key in headers for key in self.present),
            *(headers.get(key) == value for key, value in self.values.items()),
        )
        return any(facts) if self.any else all(facts)


class HeadersRouter(KeyRouter):
    """Bindings with their conditions, tried one after the other."""

    key_decides = False

    def __init__(self, arguments: Arguments) -> None:
        super().__init__(arguments)
        self.conditions: dict[Binding, Condition] = {}

    def check(self, binding: Binding) -> None:
        """Refuse (406) an `x-match` that is none."""
        arguments = binding.definition.arguments
        if "x-match" not in arguments:
            return
        mode = arguments["x-match"]
        if not isinstance(mode, str):
            raise ChannelError(
                406,
                f"Invalid x-match field type {field_type(mode)} (value {term(mode)}); "
                "expected longstr",
            )
        if mode not in MODES:
            raise ChannelError(
                406,
                f"Invalid x-match field value {term(mode)}; "
                "expected all, any, all-with-x, or any-with-x",
            )

    def add(self, binding: Binding) -> None:
        """Take a binding in."""
        self.conditions[binding] = Condition(binding.definition.arguments)

    def remove(self, binding: Binding) -> None:
        """Let a binding go."""
        del self.conditions[binding]

    def match(self, _routing_key: str, message: Message | None) -> list[Binding]:
        """List the bindings whose condition holds."""
        headers = {} if message is None else message.headers
        found = {key: comparable(value) for key, value in headers.items()}
        return [binding for binding, when in self.conditions.items() if when.holds(found)]


def comparable(value: Any) -> Hashable:
    """Freeze a value for comparison; here a whole number equals the same number as a float."""
    if isinstance(value, int | float) and not isinstance(value, bool):
        return "number", value
    return frozen(value)
