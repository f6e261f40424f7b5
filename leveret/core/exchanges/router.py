"""What an exchange type is: which of its bindings a message matches."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from leveret.errors import LeveretError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from leveret.core.routing.bindings import Binding
    from leveret.core.routing.message import Message
    from leveret.ports.definitions import Arguments


class RoutingLimitError(LeveretError):
    """To find what a message matches would take too many steps."""


class Router(Protocol):
    """The bindings of one exchange, arranged for matching.

    It is made with the arguments of the exchange and raises the 406 that they deserve. The exchange
    adds a binding once and removes it once; it asks `check` before it adds.
    """

    @property
    def key_decides(self) -> bool:
        """Whether equal routing keys match the same bindings, so that routes can be remembered."""
        ...

    @property
    def takes_each_key(self) -> bool:
        """Whether each of a message's keys may match; else the first speaks for all of them."""
        ...

    @property
    def chooses(self) -> bool:
        """Whether it matters to a message what other bindings there are."""
        ...

    def check(self, binding: Binding) -> None:
        """Raise the 406 that a key, arguments or a destination of no use to this type deserve."""
        ...

    def add(self, binding: Binding) -> None:
        """Take a binding in."""
        ...

    def remove(self, binding: Binding) -> None:
        """Let a binding go, the same object that was added."""
        ...

    def match(self, routing_key: str, message: Message | None) -> Iterable[Binding]:
        """List the bindings that a message matches; a destination may come more than once.

        There may be no message where `key_decides`: a route is looked for, to be remembered. Raises
        RoutingLimitError.
        """
        ...

    def history(self) -> Iterable[Message]:
        """What a new binding is given at once, oldest first."""
        ...


class KeyRouter:
    """Base of the types that look at nothing but the routing key."""

    key_decides = True
    takes_each_key = False
    chooses = False

    def __init__(self, arguments: Arguments) -> None:
        """Take the arguments of the exchange, for types that have any."""
        self.arguments = arguments

    def check(self, binding: Binding) -> None:
        """Any key will do, and arguments mean nothing."""

    def history(self) -> Iterable[Message]:
        """Nothing is kept."""
        return ()
