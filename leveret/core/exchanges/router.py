"""What an exchange type is: which of its bindings a message matches."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections.abc import Iterable

    from leveret.core.bindings import Binding
    from leveret.ports.definitions import Arguments, BindingDefinition


class Router(Protocol):
    """The bindings of one exchange, arranged for matching.

    The exchange adds a binding once and removes it once; it asks `check` before it adds.
    """

    @property
    def needs_headers(self) -> bool:
        """Whether the routing key alone does not decide; its routes cannot be remembered then."""
        ...

    def check(self, binding: BindingDefinition) -> None:
        """Raise the 406 that a key or arguments of no use to this type deserve."""
        ...

    def add(self, binding: Binding) -> None:
        """Take a binding in."""
        ...

    def remove(self, binding: Binding) -> None:
        """Let a binding go, the same object that was added."""
        ...

    def match(self, routing_key: str, headers: Arguments | None) -> Iterable[Binding]:
        """List the bindings that a message matches; a destination may come more than once."""
        ...


class KeyRouter:
    """Base of the types that look at nothing but the routing key."""

    needs_headers = False

    def __init__(self, arguments: dict[str, Any]) -> None:
        """Take the arguments of the exchange, for types that have any."""
        self.arguments = arguments

    def check(self, binding: BindingDefinition) -> None:
        """Any key will do, and arguments mean nothing."""
