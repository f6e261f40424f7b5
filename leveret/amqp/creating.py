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
from leveret.ports.authentication import UnansweredError
from leveret.ports.definition_changes import ChangeOutcome, DeclareQueue

if TYPE_CHECKING:
    from collections.abc import Awaitable

    from leveret.amqp.protocol import ChannelBase
    from leveret.broker.broker import Broker
    from leveret.core.logs.log_writer import Waiter

__all__ = ["KeptDefinitions", "creates_missing"]


class UnmadeQueueError(UnansweredError):
    """Raised for a message whose queue other nodes must create first: await `ask()`, then repeat.

    Unlike with permissions, `ask` raises what a declaration would.
    """


def creates_missing(channel: ChannelBase, key: bytes) -> bool:
    """Create the queue that a routing key names; return False if it exists or cannot be created.

    Raises ChannelError 406 where no further queue is allowed, and UnansweredError.
    """
    try:
        name = key.decode()
    except UnicodeDecodeError:
        return False
    if not name or name != stripped(name) or name.startswith(RESERVED_PREFIX):
        return False
    if is_reply_address(key) or channel.vhost.find_queue(name) is not None:
        return False
    try:
        channel.require("configure", "queue", name)
    except ChannelError:
        return False
    wanted = channel.vhost.named_queue(DeclareQueue(channel.vhost.name, name))
    with acting_as(channel.connection.user):
        making = channel.broker.changes.make(wanted, None, _do_nothing)
    if making is None:
        return True
    raise UnmadeQueueError(lambda: making)


def _do_nothing(_outcome: ChangeOutcome) -> Awaitable[None] | None:
    return None


class KeptDefinitions:
    """A commit of all definitions that exist now (see Committing)."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker

    def await_commit(self, waiter: Waiter) -> None:
        """Tell `waiter` when the definitions are on disk (see Committing)."""
        self._broker.await_definitions(waiter)
