"""Exchange type `fanout`: everything to everyone."""

from __future__ import annotations

from typing import TYPE_CHECKING

from leveret.core.exchanges.router import KeyRouter

if TYPE_CHECKING:
    from collections.abc import Iterable

    from leveret.core.routing.bindings import Binding
    from leveret.core.routing.message import Message
    from leveret.ports.definitions import Arguments


class FanoutRouter(KeyRouter):
    """All bindings, in the order in which they were made."""

    def __init__(self, arguments: Arguments) -> None:
        super().__init__(arguments)
        self.bindings: dict[Binding, None] = {}

    def add(self, binding: Binding) -> None:
        """Take a binding in."""
        self.bindings[binding] = None

    def remove(self, binding: Binding) -> None:
        """Let a binding go."""
        del self.bindings[binding]

    def match(self, _routing_key: str, _message: Message | None) -> Iterable[Binding]:
        """List all bindings."""
        return self.bindings
