"""Exchange type `x-recent-history`: a fanout whose new bindings get the last messages at once.

The history is kept in memory and lost at a restart, as in RabbitMQ, whatever the exchange's
durability: it is for those who come late, not a store.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from leveret.core.erlang_terms import field_type, term
from leveret.core.exchanges.fanout import FanoutRouter
from leveret.errors import ChannelError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from leveret.core.routing.bindings import Binding
    from leveret.core.routing.message import Message
    from leveret.ports.definitions import Arguments

LENGTH = "x-recent-history-length"
NO_STORE = "x-recent-history-no-store"
LENGTH_DEFAULT = 20
LENGTH_TYPES = ("byte", "short", "signedint", "long")
# Of one exchange, beside its newest message: the length is the client's choice, the memory is not.
HISTORY_BYTES_MAX = 16 * 1024 * 1024
MESSAGE_OVERHEAD_BYTES = 512  # the objects around a message's bytes


class RecentHistoryRouter(FanoutRouter):
    """All bindings, and the newest messages."""

    key_decides = False  # every message must come by, to be kept

    def __init__(self, arguments: Arguments) -> None:
        super().__init__(arguments)
        self.length = arguments.get(LENGTH, LENGTH_DEFAULT)
        if field_type(self.length) not in LENGTH_TYPES or self.length <= 0:
            raise ChannelError(
                406, f"Invalid argument {term(self.length)}, '{LENGTH}' must be a positive integer"
            )
        self.kept: deque[Message] = deque()
        self.kept_bytes = 0

    def match(self, routing_key: str, message: Message | None) -> Iterable[Binding]:
        """List all bindings, and keep the message unless it says otherwise."""
        if message is not None and message.headers.get(NO_STORE) is not True:
            self._keep(message)
        return super().match(routing_key, message)

    def _keep(self, message: Message) -> None:
        self.kept.append(message)
        self.kept_bytes += _size(message)
        while len(self.kept) > self.length or (
            self.kept_bytes > HISTORY_BYTES_MAX and len(self.kept) > 1
        ):
            self.kept_bytes -= _size(self.kept.popleft())

    def history(self) -> Iterable[Message]:
        """What is kept, oldest first."""
        return tuple(self.kept)


def _size(message: Message) -> int:
    return MESSAGE_OVERHEAD_BYTES + len(message.header) + len(message.body)
