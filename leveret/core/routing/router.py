"""Interface of an exchange type: which of its bindings a message matches."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from leveret.errors import LeveretError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from leveret.core.routing.bindings import Binding
    from leveret.core.routing.message import Message
    from leveret.ports.definitions import Arguments


class RoutingLimitError(LeveretError):
    """Raised if matching a message takes too many steps."""


class Router(Protocol):
    """Bindings of one exchange, organized for matching.

    It is created with the exchange's arguments and raises ChannelError 406 if they are invalid. The
    exchange adds and removes a binding once; it calls `check` before adding.
    """

    @property
    def key_decides(self) -> bool:
        """Whether equal routing keys match the same bindings, so that routes can be cached."""
        ...

    @property
    def takes_each_key(self) -> bool:
        """Whether each of a message's keys is matched; otherwise only the first."""
        ...

    @property
    def chooses(self) -> bool:
        """Whether a match depends on which other bindings there are."""
        ...

    def check(self, binding: Binding) -> None:
        """Raise ChannelError 406 for a key, arguments or a destination not valid for this type."""
        ...

    def add(self, binding: Binding) -> None:
        """Add a binding."""
        ...

    def remove(self, binding: Binding) -> None:
        """Remove a binding, given as the object that was added."""
        ...

    def match(self, routing_key: str, message: Message | None) -> Iterable[Binding]:
        """Return the bindings that a message matches; a destination may occur more than once.

        The message may be None if `key_decides`, for a route to be cached. Raises
        RoutingLimitError.
        """
        ...

    def history(self) -> Iterable[Message]:
        """Return the messages for a new binding, oldest first."""
        ...


class KeyRouter:
    """Base class of types that look at the routing key only."""

    key_decides = True
    takes_each_key = False
    chooses = False

    def __init__(self, arguments: Arguments) -> None:
        """Store the exchange's arguments, for types that have any."""
        self.arguments = arguments

    def check(self, binding: Binding) -> None:
        """Accept any binding."""

    def history(self) -> Iterable[Message]:
        """Return no messages."""
        return ()
