"""Exchange type `fanout`: every message to all bindings."""

from __future__ import annotations

from typing import TYPE_CHECKING

from leveret.core.routing.router import KeyRouter

if TYPE_CHECKING:
    from collections.abc import Iterable

    from leveret.core.routing.bindings import Binding
    from leveret.core.routing.message import Message
    from leveret.ports.definitions import Arguments


class FanoutRouter(KeyRouter):
    """Router to all bindings, in the order in which they were added."""

    def __init__(self, arguments: Arguments) -> None:
        super().__init__(arguments)
        self.bindings: dict[Binding, None] = {}

    def add(self, binding: Binding) -> None:
        """Add a binding."""
        self.bindings[binding] = None

    def remove(self, binding: Binding) -> None:
        """Remove a binding."""
        del self.bindings[binding]

    def match(self, _routing_key: str, _message: Message | None) -> Iterable[Binding]:
        """Return all bindings."""
        return self.bindings
