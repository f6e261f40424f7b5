"""Creation of queues by their first message, in virtual hosts with `creates_queues`.

A message to the default exchange whose routing key names no queue creates a durable one of the
virtual host's default type, if its user may configure a queue of that name. Without that permission
the message is unroutable, as usual.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from leveret.amqp.direct_reply import is_reply_address
from leveret.core.events import acting_as
from leveret.core.names import RESERVED_PREFIX, stripped
from leveret.errors import ChannelError

if TYPE_CHECKING:
    from leveret.amqp.protocol import ChannelBase
    from leveret.broker.broker import Broker
    from leveret.core.logs.log_writer import Waiter
    from leveret.core.routing.bindings import QueueLike

__all__ = ["KeptDefinitions", "missing_queue"]


def missing_queue(channel: ChannelBase, key: bytes) -> QueueLike | None:
    """Create the queue that a routing key names; None if it exists or cannot be created.

    Raises ChannelError 406 where no further queue is allowed, and UnansweredError.
    """
    try:
        name = key.decode()
    except UnicodeDecodeError:
        return None
    if not name or name != stripped(name) or name.startswith(RESERVED_PREFIX):
        return None
    if is_reply_address(key) or channel.vhost.find_queue(name) is not None:
        return None
    try:
        channel.require("configure", "queue", name)
    except ChannelError:
        return None
    with acting_as(channel.connection.user):
        return channel.vhost.declare_queue(
            name, durable=True, exclusive=False, auto_delete=False, arguments={}, owner=None
        )


class KeptDefinitions:
    """A commit of all definitions that exist now (see Committing)."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker

    def await_commit(self, waiter: Waiter) -> None:
        """Tell `waiter` when the definitions are on disk (see Committing)."""
        self._broker.await_definitions(waiter)
