"""A connection and a channel as their parts and operations see them.

`Connection` and `Channel` are made of parts (limits, consumers, transactions, …) and know them all;
the parts know what stands here: identity, state, rights, answers, and how to wait.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from enum import Enum, auto
from typing import TYPE_CHECKING

from pamqp import commands

from leveret.amqp.client_input import ClientInput
from leveret.amqp.frames import FrameReader
from leveret.amqp.handshake import HEADER, RUNNING, Tuned
from leveret.amqp.methods import build, encode_method
from leveret.core.access.permissions import IMPERSONATOR, authorise, authorise_topic
from leveret.core.clients import Origin
from leveret.errors import ChannelError, ConnectionClosingError, StorageError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Collection, Iterator

    from pamqp import base

    from leveret.amqp.frames import ChannelSlot
    from leveret.amqp.transport import Transport
    from leveret.broker.broker import Broker
    from leveret.config import Configuration
    from leveret.core.queues.declared_queue import DeclaredQueue
    from leveret.core.vhost import Vhost
    from leveret.errors import AmqpError
    from leveret.features.rates.rates import ConnectionLimits
    from leveret.ports.authentication import Kind, Permission, Rights, TopicPermission

REASON_BYTES_MAX = 255  # a short string holds no more


class Cause(Enum):
    """Reason not to read a connection; the client is told by connection.blocked.

    An alarm blocks connections that publish, a rate those that publish too fast, and too many
    unfinished messages those that have begun one. Consumers on other connections are still served,
    because they free resources; those on a blocked connection are blocked with it, as in RabbitMQ.
    """

    ALARM = auto()
    RATE = auto()
    UNFINISHED = auto()


class ConnectionBase(ClientInput, ABC):
    """Connection as its channels, limits and operations see it.

    They refer to it weakly where they belong to it, so that a lost connection is freed with its
    socket: the garbage collector would have to scan everything for thousands of them.
    """

    # More attributes than Python would find without a dictionary: see core.logs.log_writer.
    __slots__ = (
        "__weakref__",
        "_blocked_by",
        "broker",
        "capabilities",
        "client_properties",
        "configuration",
        "connected_at_ms",
        "counters",
        "limits",
        "mechanism",
        "name",
        "tuned",
        "user",
    )

    def __init__(self, transport: Transport, broker: Broker, configuration: Configuration) -> None:
        reader = FrameReader(
            configuration.initial_frame_max,
            configuration.message_bytes_max,
            configuration.unfinished_message_bytes_max,
        )
        super().__init__(transport, reader, broker.turn, broker.alarms, HEADER)
        self.broker = broker
        self.configuration = configuration
        self.outbox.counters = self.counters = self.reader.counters
        self.reader.message_sizes = broker.statistics.message_sizes
        self.user = ""
        self.name = ""  # from its ends, once it is open
        self.mechanism = ""
        self.connected_at_ms = 0
        self.client_properties: dict[str, object] = {}
        self.capabilities: frozenset[str] = frozenset()
        self.tuned = Tuned(0, configuration.initial_frame_max, 0)
        self.limits: ConnectionLimits  # of rates, once it is open
        self._blocked_by: set[Cause] = set()

    def __str__(self) -> str:
        return self.name

    # -- its state

    @property
    def is_open(self) -> bool:
        """Whether the handshake is over and the connection is not being closed."""
        return self.state is RUNNING

    @property
    def is_waiting(self) -> bool:
        """Whether an operation must end before more is read."""
        return self.waits > 0

    def client_understands(self, capability: str) -> bool:
        """Whether the client has announced a capability."""
        return capability in self.capabilities

    def take_rights(self, rights: Rights) -> None:
        """Set the user's rights and, where they expire, the time."""
        self.user, self.rights = rights.user, rights
        self.route_generation = -1
        self.reader.accept_user_id(None if IMPERSONATOR in rights.tags else self.user)
        self.transport.set_expiry(rights.expires_at_ms)

    def send(self, method: base.Frame) -> None:
        """Queue a method of channel 0."""
        self.outbox.write(encode_method(0, method))
        self.touch()

    # -- why it is not read

    @property
    def is_blocked(self) -> bool:
        """Whether an alarm or a limit keeps the connection from publishing."""
        return bool(self._blocked_by)

    def block(self, cause: Cause, reason: str) -> None:
        """Read nothing while there is `cause`; the client is told the `reason` of the first."""
        if cause in self._blocked_by or self.state is not RUNNING:
            return
        self._blocked_by.add(cause)
        if len(self._blocked_by) == 1:
            if self.client_understands("connection.blocked"):
                text = reason.encode()[:REASON_BYTES_MAX].decode(errors="ignore")
                self.send(build(commands.Connection.Blocked, reason=text))
            self.transport.hold(held=True)

    def unblock(self, cause: Cause) -> None:
        """Remove a cause; read again if it was the last."""
        if cause in self._blocked_by:
            self._blocked_by.remove(cause)
            if not self._blocked_by:
                if self.client_understands("connection.blocked"):
                    self.send(commands.Connection.Unblocked())
                self.transport.hold(held=False)

    def unblock_all(self) -> None:
        """Read again, whatever the causes: the connection is closing and waits for close-ok."""
        if self._blocked_by:
            self._blocked_by.clear()
            self.transport.hold(held=False)

    def check_alarms(self) -> None:
        """Block this connection if a resource alarm is active; called after a publish."""
        if self.broker.alarms.reason:
            self.block(Cause.ALARM, self.broker.alarms.reason)

    # -- waiting

    def wait_for(self, work: Awaitable[None] | None) -> None:
        """Stop reading until `work` is done, unless it is None."""
        if work is not None:
            self.hand_over()  # others may have it flushed meanwhile
            self.waits += 1
            self.transport.wait_for(work)

    @abstractmethod
    def take_time(self, steps: Iterator[None]) -> None:
        """Run `steps`, which may be long: at once for a turn's share, the rest in later turns.

        The connection is not read before they are done.
        """

    @abstractmethod
    def go_on(self) -> None:
        """Process unread bytes, unless an operation is being waited for."""

    # -- what it counts

    @abstractmethod
    def count_transaction(self, size: int) -> None:
        """Add `size` bytes (may be negative) to the publishes that wait for a tx.commit."""

    @abstractmethod
    def follow_rates(self) -> None:
        """Set the rate limits anew, when the connection opens or a limit has changed."""

    # -- its end

    @abstractmethod
    def shut(self, error: AmqpError) -> None:
        """Close the connection with a reply code and text; wait a while for its close-ok."""

    @abstractmethod
    def close_socket(self) -> None:
        """Close the socket once the output is sent, without waiting for the client."""

    @abstractmethod
    def close_channel(self, number: int, error: ChannelError) -> None:
        """Send channel.close with an error, if that channel is open."""


class ChannelBase(ABC):
    """Channel as its operations see it: whose it is, the user's permissions, answers."""

    connection: ConnectionBase
    slot: ChannelSlot  # its state that the frame reader shares
    alive: bool  # until it is closed by either side

    def __init__(self, connection: ConnectionBase, number: int) -> None:
        self.connection = connection
        self.broker: Broker = connection.broker
        self.vhost: Vhost = connection.vhost
        self.number = number
        self.last_queue: str | None = None  # what an empty queue name means

    @property
    def name(self) -> str:
        """Name of the channel: its connection's name and its number."""
        return f"{self.connection.name} ({self.number})"

    @property
    def origin(self) -> Origin:
        """Names by which the firehose identifies this channel."""
        return Origin(self.connection.name, self.number, self.connection.user)

    def queue_named(self, name: str) -> str:
        """Return `name`, or the queue declared last on this channel if empty. Raises 404."""
        if name:
            return name
        if self.last_queue is None:
            raise ChannelError(404, "no previously declared queue")
        return self.last_queue

    def queue(self, name: str) -> DeclaredQueue:
        """Return a queue that this connection may use. Raises ChannelError 404 and 405."""
        return self.broker.find_queue(self.vhost, name, self.connection)

    # -- permissions

    def require(self, permission: Permission, kind: Kind, name: str) -> None:
        """Raise ChannelError 403 unless the user has this permission on the resource."""
        authorise(self.connection.rights, self.vhost.name, kind, name, permission)

    def require_any(self, kind: Kind, name: str) -> None:
        """Raise ChannelError 403 unless the user has some permission on the resource.

        For passive declarations, which must not disclose to other users what exists.
        """
        access, user, vhost = self.broker.access, self.connection.user, self.vhost.name
        others: tuple[Permission, ...] = ("write", "read")
        if not any(access.allows(user, vhost, kind, name, permission) for permission in others):
            self.require("configure", kind, name)

    def require_topic(self, permission: TopicPermission, exchange_name: str, key: str) -> None:
        """Raise ChannelError 403 unless the user's topic permissions allow a routing key."""
        exchange = self.vhost.exchanges.get(exchange_name)
        if exchange is not None and exchange.definition.type == "topic":
            authorise_topic(self.connection.rights, self.vhost.name, exchange_name, key, permission)

    # -- answers

    def send(self, method: base.Frame) -> None:
        """Queue a method for the client."""
        self.connection.outbox.write(encode_method(self.number, method))
        self.connection.touch()

    def send_all(self, methods: list[base.Frame]) -> None:
        """Queue methods for the client, in order."""
        for method in methods:
            self.send(method)

    def reply(
        self, method: base.Frame, *, nowait: bool = False, kept: bool = True
    ) -> Awaitable[None] | None:
        """Answer a method; after the definitions are flushed if it changed a durable one (`kept`).

        Other methods do not wait for a flush, which a full disk may prevent.
        """
        if kept and self.broker.metadata.pending:
            return self._reply_kept(None if nowait else method)
        if not nowait:
            self.send(method)
        return None

    async def _reply_kept(self, method: base.Frame | None) -> None:
        await self.broker.metadata.flush()
        if method is not None:
            self.send(method)

    # -- what must wait

    def take_time_before(
        self, steps: Iterator[None], then: Callable[[], Awaitable[None] | None]
    ) -> None:
        """Run `steps`, which may be long, then `then`; the connection is not read meanwhile."""
        self.connection.take_time(self._taking_time_before(steps, then))

    def _taking_time_before(
        self, steps: Iterator[None], then: Callable[[], Awaitable[None] | None]
    ) -> Iterator[None]:
        yield from steps
        if self.connection.is_open:
            self.connection.wait_for(then())

    def flush(self, queue: DeclaredQueue) -> None:
        """Have the effects of what was published to a queue in this turn."""
        for part in queue.partitions:
            self.broker.turn.flush_queue(part)

    def when_opened(
        self, queue: DeclaredQueue, then: Callable[[], Awaitable[None] | None]
    ) -> Awaitable[None] | None:
        """Call `then` when `queue` is opened, or deleted. Raises 541 if it cannot be opened."""
        try:
            is_opened = queue.open()
        except StorageError as error:
            raise _cannot_open(queue, error) from error
        return then() if is_opened else self._after_opening(queue, then)

    async def _after_opening(
        self, queue: DeclaredQueue, then: Callable[[], Awaitable[None] | None]
    ) -> None:
        try:
            await queue.opened()
        except StorageError as error:
            raise _cannot_open(queue, error) from error
        if self.alive:
            work = then()
            if work is not None:
                await work

    def when_caught_up(
        self, queue: DeclaredQueue, then: Callable[[], Awaitable[None] | None]
    ) -> Awaitable[None] | None:
        """Call `then` when all that was published to `queue` so far is committed and delivered.

        So a client reads its own writes, except what went to waiting consumers. A queue that is
        deleted meanwhile looks empty to `then`.
        """
        self.flush(queue)
        return then() if queue.is_caught_up else self._after_commit([queue], then)

    def when_effective(
        self, queues: Collection[DeclaredQueue], then: Callable[[], Awaitable[None] | None]
    ) -> Awaitable[None] | None:
        """Call `then` when this client's earlier publishes to `queues` have taken effect.

        They go to the consumers as they were before. Publishes of other clients are not waited for,
        so a client that only consumes does not wait for a disk.
        """
        for queue in queues:
            self.flush(queue)
        if self.connection.reader.published.messages:
            uncommitted = [queue for queue in queues if not queue.is_caught_up]
            if uncommitted:
                return self._after_commit(uncommitted, then)
        return then()

    async def _after_commit(
        self, queues: Collection[DeclaredQueue], then: Callable[[], Awaitable[None] | None]
    ) -> None:
        await self.connection.transport.committed(queues)
        if not self.alive:
            return  # nobody is left to be answered, or to hold a message
        for queue in queues:
            self.flush(queue)
        work = then()
        if work is not None:
            await work


def _cannot_open(queue: DeclaredQueue, error: StorageError) -> ConnectionClosingError:
    return ConnectionClosingError(541, f"cannot open {queue}: {error}")
