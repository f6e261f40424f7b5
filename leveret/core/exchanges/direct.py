"""Exchange type `direct`: the binding's key equals the message's."""

from __future__ import annotations

from typing import TYPE_CHECKING

from leveret.core.routing.router import KeyRouter

if TYPE_CHECKING:
    from collections.abc import Iterable

    from leveret.core.routing.bindings import Binding
    from leveret.core.routing.message import Message
    from leveret.ports.definitions import Arguments


class DirectRouter(KeyRouter):
    """Router by equal routing key."""

    takes_each_key = True

    def __init__(self, arguments: Arguments) -> None:
        super().__init__(arguments)
        self.by_key: dict[str, dict[Binding, None]] = {}

    def add(self, binding: Binding) -> None:
        """Add a binding."""
        self.by_key.setdefault(binding.definition.routing_key, {})[binding] = None

    def remove(self, binding: Binding) -> None:
        """Remove a binding."""
        key = binding.definition.routing_key
        del self.by_key[key][binding]
        if not self.by_key[key]:
            del self.by_key[key]

    def match(self, routing_key: str, _message: Message | None) -> Iterable[Binding]:
        """Return the bindings with this key."""
        return self.by_key.get(routing_key, ())
