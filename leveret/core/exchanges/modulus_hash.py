"""Exchange type `x-modulus-hash`: hash of the routing key modulo the number of bindings."""

from __future__ import annotations

from bisect import bisect_left, insort
from hashlib import blake2b
from typing import TYPE_CHECKING

from leveret.core.routing.router import KeyRouter

if TYPE_CHECKING:
    from collections.abc import Iterable

    from leveret.core.routing.bindings import Binding
    from leveret.core.routing.message import Message
    from leveret.ports.definitions import Arguments


class ModulusHashRouter(KeyRouter):
    """Router over bindings sorted by destination, so that a restart does not change routes."""

    chooses = True

    def __init__(self, arguments: Arguments) -> None:
        super().__init__(arguments)
        self.bindings: list[Binding] = []

    def add(self, binding: Binding) -> None:
        """Add a binding."""
        insort(self.bindings, binding, key=_place)

    def remove(self, binding: Binding) -> None:
        """Remove a binding."""
        index = bisect_left(self.bindings, _place(binding), key=_place)
        del self.bindings[self.bindings.index(binding, index)]

    def match(self, routing_key: str, _message: Message | None) -> Iterable[Binding]:
        """Return the binding chosen by the key."""
        if not self.bindings:
            return ()
        digest = blake2b(routing_key.encode(errors="surrogateescape"), digest_size=8).digest()
        return (self.bindings[int.from_bytes(digest) % len(self.bindings)],)


def _place(binding: Binding) -> tuple[str, str, str]:
    definition = binding.definition
    return definition.destination_type, definition.destination, definition.routing_key
