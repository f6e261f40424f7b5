"""Interceptors: features that may take or refuse a message before it is routed.

A channel asks here once it knows that its user may publish. Each interceptor is one feature: it
leaves the message alone, takes it (to keep it for later, or to drop it as seen before), or refuses
it with a ChannelError before anything is stored. A message that nobody takes is routed at once.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple, Protocol

from leveret.ports.records import RecordFlag

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from leveret.core.clients import Origin
    from leveret.core.logs.atomic import AtomicWrite
    from leveret.core.logs.log_writer import Committing
    from leveret.core.routing.message import Message
    from leveret.core.vhost import Vhost
    from leveret.errors import ChannelError
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

    def close(self, error: ChannelError) -> None:
        """End it, for what a publish deserves that was looked at later."""
        ...

    def send_back(self, message: Message) -> None:
        """Return a mandatory message that nobody takes (basic.return), while it is open."""
        ...


@dataclass(frozen=True, slots=True)
class PublishContext:
    """One message on its way in.

    `message` is what is to be stored, BCC included; `keys` are its routing key and those that its
    sender has added; `requests` the RecordFlags above STORED; `tag` its number on the channel;
    `write` what it is published by, for a message of a transaction or a staged batch.
    """

    vhost: Vhost
    message: Message
    keys: Sequence[bytes]
    requests: int
    mandatory: bool
    tag: int
    user: str
    channel: Publisher
    write: AtomicWrite | None = None


class PublishInterceptor(Protocol):
    """One feature's look at messages that come in."""

    def intercept(self, context: PublishContext) -> Collection[Committing] | None:
        """Take the message, or not (None). Raises ChannelError.

        The confirm of what was taken waits for all that is returned: nothing, if it is empty. What
        is stored by the context's `write` takes effect with that, or not at all.
        """
        ...


class InterceptedPublish(NamedTuple):
    """A message, and the features that want to see it."""

    context: PublishContext
    interceptors: Sequence[PublishInterceptor]

    def intercept(self, write: AtomicWrite | None = None) -> Collection[Committing] | None:
        """Let one of them intercept the message, or none (None). Raises ChannelError."""
        context = self.context if write is None else replace(self.context, write=write)
        for interceptor in self.interceptors:
            committing = interceptor.intercept(context)
            if committing is not None:
                return committing
        return None


class PublishInterceptors:
    """The interceptors in the order in which they are asked.

    Each stands with the RecordFlags of the messages that it looks at. WANTS_ORDER includes messages
    to an exchange with a de-duplication window.
    """

    def __init__(self) -> None:
        self.interceptors: list[tuple[int, PublishInterceptor]] = []
        # Exchanges that exist for publishing only, in every virtual host: what is published there
        # is a command. By name, in bytes as on the wire.
        self.commands: dict[bytes, PublishInterceptor] = {}

    def for_publish(self, vhost: Vhost, exchange: bytes, requests: int) -> list[PublishInterceptor]:
        """Return the interceptors that look at a message. Called for each off the fast path."""
        command = self.commands.get(exchange)
        if command is not None:
            return [command]
        found = vhost.exchanges.get(exchange.decode(errors="replace"))
        if found is not None and found.dedup_window_ms is not None:
            requests |= RecordFlag.WANTS_ORDER
        return [interceptor for flags, interceptor in self.interceptors if flags & requests]
