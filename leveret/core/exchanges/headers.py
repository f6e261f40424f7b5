"""Exchange type `headers`: compares a binding's arguments with a message's headers.

    all, all-with-x     every header in the arguments has the same value in the message
    any, any-with-x     at least one has; without `-with-x` arguments whose names begin with x- are
                        ignored. An argument without a value checks whether the header is present

A message is not compared with every binding. Conditions are indexed: those with `all` under one of
their items, the one shared with the fewest others; those with `any` under each. A message looks up
its own items, so that its cost depends on the bindings that share one with it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from leveret.core.erlang_terms import field_type, frozen, term
from leveret.core.routing.router import KeyRouter
from leveret.errors import ChannelError
from leveret.features.filters.rules import FILTER_SQL, FILTER_TAGS

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterable

    from leveret.core.routing.bindings import Binding
    from leveret.core.routing.message import Message
    from leveret.ports.definitions import Arguments

# Arguments of a binding that are not compared with headers.
NOT_COMPARED = ("x-match", FILTER_TAGS, FILTER_SQL)
MODES = ("all", "any", "all-with-x", "any-with-x")

# A header with its value, or the name alone: the header is present.
Item: TypeAlias = "tuple[str, Hashable] | tuple[str]"


class HeadersCondition(NamedTuple):
    """Condition in a binding's arguments; equal ones are kept once, with all their bindings."""

    items: frozenset[Item]
    any: bool


class HeadersRouter(KeyRouter):
    """Router by conditions, indexed by the items that a message must have."""

    key_decides = False

    def __init__(self, arguments: Arguments) -> None:
        super().__init__(arguments)
        self.bindings: dict[HeadersCondition, dict[Binding, None]] = {}
        self._all: dict[Item, dict[HeadersCondition, None]] = {}  # each under one of its items
        self._any: dict[Item, dict[HeadersCondition, None]] = {}  # each under all of its items
        self._place: dict[HeadersCondition, Item] = {}  # index item of those in `_all`
        self._names: dict[str, int] = {}  # number of conditions by header name

    def check(self, binding: Binding) -> None:
        """Raise 406 for an invalid `x-match`."""
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
        """Add a binding."""
        condition = condition_of(binding.definition.arguments)
        if condition not in self.bindings:
            self.bindings[condition] = {}
            self._enter(condition)
        self.bindings[condition][binding] = None

    def remove(self, binding: Binding) -> None:
        """Remove a binding."""
        condition = condition_of(binding.definition.arguments)
        bindings = self.bindings[condition]
        del bindings[binding]
        if not bindings:
            del self.bindings[condition]
            self._leave(condition)

    def _enter(self, condition: HeadersCondition) -> None:
        for item in condition.items:
            self._names[item[0]] = self._names.get(item[0], 0) + 1
        if condition.any:
            for item in condition.items:
                self._any.setdefault(item, {})[condition] = None
        elif condition.items:
            place = min(condition.items, key=lambda item: len(self._all.get(item, ())))
            self._place[condition] = place
            self._all.setdefault(place, {})[condition] = None

    def _leave(self, condition: HeadersCondition) -> None:
        for item in condition.items:
            self._names[item[0]] -= 1
            if not self._names[item[0]]:
                del self._names[item[0]]
        if condition.any:
            for item in condition.items:
                _remove(self._any, item, condition)
        elif condition.items:
            _remove(self._all, self._place.pop(condition), condition)

    def match(self, _routing_key: str, message: Message | None) -> list[Binding]:
        """Return the bindings whose condition holds."""
        items = self._items_of({} if message is None else message.headers)
        found: dict[HeadersCondition, None] = {}
        if WANTS_NOTHING in self.bindings:
            found[WANTS_NOTHING] = None
        for item in items:
            found.update(self._any.get(item, NO_CONDITIONS))
            for condition in self._all.get(item, NO_CONDITIONS):
                if condition.items <= items:
                    found[condition] = None
        return [binding for condition in found for binding in self.bindings[condition]]

    def _items_of(self, headers: Arguments) -> set[Item]:
        """Return the items of a message whose names occur in conditions."""
        names = self._names
        if len(names) < len(headers):
            known: Iterable[str] = [name for name in names if name in headers]
        else:
            known = [name for name in headers if name in names]
        items: set[Item] = {(name,) for name in known}
        items.update((name, comparable(headers[name])) for name in known)
        return items


WANTS_NOTHING = HeadersCondition(frozenset(), any=False)  # so that it matches everything
NO_CONDITIONS: dict[HeadersCondition, None] = {}


def condition_of(arguments: Arguments) -> HeadersCondition:
    """Return the condition in a binding's arguments."""
    mode = arguments.get("x-match", "all")
    items: set[Item] = set()
    for name, value in arguments.items():
        if name in NOT_COMPARED or (name.startswith("x-") and mode in ("all", "any")):
            continue
        items.add((name,) if value is None else (name, comparable(value)))
    return HeadersCondition(frozenset(items), any=mode in ("any", "any-with-x"))


def _remove(
    table: dict[Item, dict[HeadersCondition, None]], item: Item, condition: HeadersCondition
) -> None:
    del table[item][condition]
    if not table[item]:
        del table[item]


def comparable(value: Any) -> Hashable:
    """Return a hashable value for comparison; an integer equals the same number as a float."""
    if isinstance(value, int | float) and not isinstance(value, bool):
        return "number", value
    return frozen(value)
