"""Exchange types `x-random` and `x-local-random`: each message to one random binding."""

from __future__ import annotations

from typing import TYPE_CHECKING

from leveret.core.routing.router import KeyRouter
from leveret.core.settings.arguments import MODULES, type_of
from leveret.errors import ChannelError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from leveret.core.routing.bindings import Binding
    from leveret.core.routing.message import Message
    from leveret.ports.definitions import Arguments


class RandomRouter(KeyRouter):
    """Router that picks among all bindings. `random_below(n)` returns one of 0 … n - 1."""

    key_decides = False
    chooses = True

    def __init__(self, arguments: Arguments, random_below: Callable[[int], int]) -> None:
        super().__init__(arguments)
        self.random_below = random_below
        self.bindings: list[Binding] = []
        self._places: dict[Binding, int] = {}

    def add(self, binding: Binding) -> None:
        """Add a binding."""
        self._places[binding] = len(self.bindings)
        self.bindings.append(binding)

    def remove(self, binding: Binding) -> None:
        """Remove a binding; the last one takes its index."""
        place, last = self._places.pop(binding), self.bindings.pop()
        if last is not binding:
            self.bindings[place] = last
            self._places[last] = place

    def match(self, _routing_key: str, _message: Message | None) -> Iterable[Binding]:
        """Return one random binding."""
        if not self.bindings:
            return ()
        return (self.bindings[self.random_below(len(self.bindings))],)


class LocalRandomRouter(RandomRouter):
    """Router that picks among queues of the publisher's node; on a single node these are all."""

    def check(self, binding: Binding) -> None:
        """Raise 406 for a routing key, an exchange as destination, or a replicated queue type."""
        key = binding.definition.routing_key
        if key:
            raise ChannelError(406, f"Non empty binding '{key}' key not permitted")
        if binding.definition.destination_type != "queue":
            raise ChannelError(406, "Destination not found")
        kind = type_of(binding.destination.definition.arguments)
        if kind != "classic":
            raise ChannelError(406, f"Queue type {MODULES[kind]} not valid for this exchange type")
