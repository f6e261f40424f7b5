"""Exchange type `x-recent-history`: a fanout that sends the latest messages to new bindings.

The history is in memory and lost at a restart, as in RabbitMQ, whatever the exchange's durability:
it serves late subscribers and is no store.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from leveret.core.erlang_terms import field_type, term
from leveret.core.exchanges.fanout import FanoutRouter
from leveret.errors import ChannelError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from leveret.core.routing.message import Message
    from leveret.ports.definitions import Arguments

LENGTH = "x-recent-history-length"
NO_STORE = "x-recent-history-no-store"
LENGTH_DEFAULT = 20
LENGTH_TYPES = ("byte", "short", "signedint", "long")
# Limit per exchange, beside its newest message: clients choose the length, not the memory.
HISTORY_BYTES_MAX = 16 * 1024 * 1024
MESSAGE_OVERHEAD_BYTES = 512  # Python objects of one message


class RecentHistoryRouter(FanoutRouter):
    """Router to all bindings that keeps the latest messages."""

    key_decides = False  # every message must be seen

    def __init__(self, arguments: Arguments) -> None:
        super().__init__(arguments)
        self.length = arguments.get(LENGTH, LENGTH_DEFAULT)
        if field_type(self.length) not in LENGTH_TYPES or self.length <= 0:
            raise ChannelError(
                406, f"Invalid argument {term(self.length)}, '{LENGTH}' must be a positive integer"
            )
        self.kept: deque[Message] = deque()
        self.kept_bytes = 0

    def keep(self, message: Message | None) -> None:
        """Keep a message that is published, unless it has x-recent-history-no-store."""
        if message is None or message.headers.get(NO_STORE) is True:
            return
        self.kept.append(message)
        self.kept_bytes += _size(message)
        while len(self.kept) > self.length or (
            self.kept_bytes > HISTORY_BYTES_MAX and len(self.kept) > 1
        ):
            self.kept_bytes -= _size(self.kept.popleft())

    def history(self) -> Iterable[Message]:
        """Return the kept messages, oldest first."""
        return tuple(self.kept)


def _size(message: Message) -> int:
    return MESSAGE_OVERHEAD_BYTES + len(message.header) + len(message.body)
