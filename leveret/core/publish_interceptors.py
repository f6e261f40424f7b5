"""Interceptors: features that may take or refuse a message before it is routed.

A channel asks here once it knows that its user may publish. Each interceptor is one feature: it
leaves the message alone, takes it (to keep it for later, or to drop it as seen before), or refuses
it with a ChannelError before anything is stored. A message that nobody takes is routed at once.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol, cast

from leveret.ports.records import RecordFlag

if TYPE_CHECKING:
    from collections.abc import Sequence

    from leveret.core.clients import Origin
    from leveret.core.logs.log_writer import Committing, Waiter
    from leveret.core.queues.declared_queue import DeclaredQueue
    from leveret.core.routing.message import Message
    from leveret.core.vhost import Vhost
    from leveret.errors import AmqpError
    from leveret.ports import TopicStore
    from leveret.ports.authentication import Kind, Permission


class Publisher(Protocol):
    """The channel that a message came on. It may be closed by the time that it is answered."""

    @property
    def alive(self) -> bool:
        """Whether it is still open."""
        ...

    def refused(self, first: int, stop: int) -> None:
        """Answer the publishes [first, stop) with basic.nack, where they are to be confirmed."""
        ...

    def require(self, permission: Permission, kind: Kind, name: str) -> None:
        """Raise ChannelError 403 unless its user has this permission on the resource."""
        ...

    @property
    def confirms_publishes(self) -> bool:
        """Whether it answers each publish."""
        ...

    @property
    def is_transactional(self) -> bool:
        """Whether what is published takes effect with tx.commit only."""
        ...

    @property
    def origin(self) -> Origin:
        """How the firehose names it."""
        ...

    def close(self, error: AmqpError) -> None:
        """End it, or its connection, for what a publish deserves that was looked at later."""
        ...

    def send_back(self, message: Message) -> None:
        """Return a mandatory message that nobody takes (basic.return), while it is open."""
        ...


@dataclass(frozen=True, slots=True)
class PublishContext:
    """One message on its way in.

    `message` is what is to be stored, BCC included; `keys` are its routing key and those that its
    sender has added; `requests` the RecordFlags above STORED; `tag` its number on the channel;
    `now_ms` the time that a delay begins at, in ms since 1970.
    """

    vhost: Vhost
    message: Message
    keys: Sequence[bytes]
    requests: int
    mandatory: bool
    tag: int
    user: str
    channel: Publisher
    now_ms: int


class PublishInterceptor(Protocol):
    """One feature's look at messages that come in."""

    def intercept(self, context: PublishContext) -> Collection[Committing] | None:
        """Take the message, or not (None). Raises ChannelError.

        The confirm of what was taken waits for all that is returned: nothing, if it is empty.
        REFUSED: nothing has taken it, and its publisher is told so.
        """
        ...

    def would_take(self, context: PublishContext) -> bool:
        """Whether `intercept` would take the message, or refuse it for lack of copies.

        Asked before others are taken of what is stored together, with the same context. Raises
        ChannelError if the message asks for what cannot be.
        """
        ...


class CommandInterceptor:
    """Base of those who take all that is published to their exchange, as commands."""

    def would_take(self, context: PublishContext) -> bool:  # noqa: ARG002
        """Take everything."""
        return True


class _Refusal:
    """Stands for what would have taken a message, and commits nothing."""

    def await_commit(self, waiter: Waiter) -> None:
        """Tell the waiter at once."""
        waiter.done(failed=True)


REFUSED: Final[Collection[Committing]] = (_Refusal(),)  # as what has taken a message


class InterceptedPublish(NamedTuple):
    """A message, and the features that want to see it."""

    context: PublishContext
    interceptors: Sequence[PublishInterceptor]

    def intercept(self) -> Collection[Committing] | None:
        """Let one of them intercept the message, or none (None). Raises ChannelError."""
        for interceptor in self.interceptors:
            committing = interceptor.intercept(self.context)
            if committing is not None:
                return committing
        return None

    def would_be_taken(self) -> bool:
        """Whether one of them would intercept the message. Raises ChannelError."""
        return any(interceptor.would_take(self.context) for interceptor in self.interceptors)

    def looked_at(self, now_ms: int) -> InterceptedPublish:
        """Return the same, as of another time."""
        return self._replace(context=replace(self.context, now_ms=now_ms))


class PublishInterceptors:
    """The interceptors in the order in which they are asked.

    Each stands with the RecordFlags of the messages that it looks at. WANTS_ORDER includes messages
    to an exchange with a de-duplication window.
    """

    def __init__(self, topics: TopicStore) -> None:
        self._topics = topics
        self.interceptors: list[tuple[int, PublishInterceptor]] = []
        # Exchanges that exist for publishing only, in every virtual host: what is published there
        # is a command. By name, in bytes as on the wire.
        self.commands: dict[bytes, PublishInterceptor] = {}

    def lacks_copies(self, context: PublishContext) -> bool:
        """Whether a queue refuses a message for lack of copies, if it is routed now.

        Who keeps it until later must not confirm it then: it would have as few copies.
        """
        if self._topics.in_sync_count is None:
            return False
        vhost, message = context.vhost, context.message
        exchange = vhost.exchanges.get(message.exchange.decode(errors="replace"))
        if exchange is None:
            return False
        keys = [key.decode(errors="replace") for key in context.keys]
        found = vhost.topology.graph.find_queues(exchange, keys, message)
        queues = cast("list[DeclaredQueue]", found)
        return any(queue.lacks_copies for queue in queues)

    def for_publish(self, vhost: Vhost, exchange: bytes, requests: int) -> list[PublishInterceptor]:
        """Return the interceptors that look at a message. Called for each off the fast path."""
        command = self.commands.get(exchange)
        if command is not None:
            return [command]
        found = vhost.exchanges.get(exchange.decode(errors="replace"))
        if found is not None and found.dedup_window_ms is not None:
            requests |= RecordFlag.WANTS_ORDER
        return [interceptor for flags, interceptor in self.interceptors if flags & requests]
