"""One AMQP connection as a state machine: bytes in, bytes into its outbox, calls into the broker.

The listener owns the socket and the clock; it feeds `received` and sends what the outbox holds. The
connection calls it through `transport` to pause, to wait and to close. Frames are handled one after
the other; where an operation must wait (a definition on its way to disk, a password check), the
connection stops reading until it is done.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pamqp import commands

from leveret.amqp import announcements, handshake, reports
from leveret.amqp.channels import CHANNEL_ENDS, CHANNEL_METHODS, Channels
from leveret.amqp.description import describe, describe_channels, describe_flows, holder_of
from leveret.amqp.frames import Publish
from leveret.amqp.handshake import CLOSED, HEADER, RUNNING, ConnectionState
from leveret.amqp.methods import NO_METHOD, closing, decode_method, encode_method, method_ids
from leveret.amqp.operations import OPERATIONS
from leveret.amqp.operations.connection import handle_connection_method, unexpected
from leveret.amqp.protocol import Cause, ConnectionBase
from leveret.amqp.rate_hold import RateHold
from leveret.amqp.sasl import offered
from leveret.amqp.unfinished import NOTED_BYTES_MIN
from leveret.core.events import acting_as
from leveret.core.telemetry.usage import accounts_of_client
from leveret.errors import BROKER_ERROR, AmqpError, ChannelError, ConnectionClosingError
from leveret.ports.authentication import UnansweredError
from leveret.ports.counters import PUBLISH
from leveret.ports.usage import Usage

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from pamqp import base

    from leveret.amqp.channel import Channel
    from leveret.amqp.client_input import Event
    from leveret.amqp.transport import Transport
    from leveret.amqp.unfinished import Unfinished
    from leveret.broker.broker import Broker
    from leveret.config import Configuration
    from leveret.core.clients import ChannelFacts, ChannelFlows, ClientFacts, Holder
    from leveret.ports.records import BatchBuilder
    from leveret.ports.usage import Account


OPENING_LOOK_SECONDS = 0.005  # a log takes a tenth of a millisecond, or as long as the disk
PROTOCOL_HEADER_BYTES = 8
BASIC_PUBLISH = (60, 40)
CLOSE_OK = encode_method(0, commands.Connection.CloseOk())


class Connection(ConnectionBase):
    """State machine of the server's side of one connection."""

    __slots__ = (
        "_event",
        "_header",
        "_is_noted",
        "_steps",
        "_stop_ns",
        "_tail",
        "_transaction_bytes",
        "_turn_ns",
        "_unfinished",
        "channels",
    )

    operations = OPERATIONS

    def __init__(
        self,
        transport: Transport,
        broker: Broker,
        configuration: Configuration,
        unfinished: Unfinished,
    ) -> None:
        """`unfinished` knows the unfinished messages of all connections."""
        super().__init__(transport, broker, configuration)
        self.channels = Channels(self)
        self._header = b""
        self._tail = b""  # what came last on a stream whose frames cannot be told apart
        self._steps: list[Iterator[None]] = []  # see take_time
        self._transaction_bytes = 0  # of publishes that wait for their tx.commit
        self._is_noted = False  # it has half sent so much that the node knows of it
        self._stop_ns = 0  # when this turn's share of time is over, once there is a second step
        self._turn_ns = configuration.connection_turn_microseconds * 1000
        self._unfinished = unfinished
        self._event: Event | None = None  # the one being handled

    @property
    def channel_count(self) -> int:
        """Number of open channels (see leveret.core.clients.Client)."""
        return len(self.channels.by_number)

    @property
    def publisher_count(self) -> int:
        """Number of channels that have published (see leveret.core.clients.Client)."""
        channels = self.channels.by_number.values()
        return sum(1 for channel in channels if channel.slot.counters.value(PUBLISH))

    def describe(self) -> ClientFacts:
        """Return the facts of this connection (see leveret.core.clients.Client)."""
        return describe(self, self.channel_count)

    def channel_facts(self) -> list[ChannelFacts]:
        """Return the facts of each open channel (see leveret.core.clients.Client)."""
        return describe_channels(self.channels.by_number)

    def channel_flows(self) -> list[ChannelFlows]:
        """Return the message counters of each open channel (see leveret.core.clients.Client)."""
        return describe_flows(self.channels.by_number)

    def holder_of(self, queue: object, offset: int) -> Holder | None:
        """Return which channel and consumer hold a record (see leveret.core.clients.Client)."""
        return holder_of(self.channels.by_number, queue, offset)

    def accounts(self) -> Sequence[Account]:
        """Return the accounts that usage is charged to (see core.telemetry.usage.Metered)."""
        return accounts_of_client(self.vhost.name, self.user)

    def total_usage(self) -> Usage:
        """Return messages and bytes so far (see core.telemetry.usage.Metered)."""
        published, sent = self.reader.published, self.outbox.sent
        return Usage(published.messages, published.bytes, sent.messages, sent.bytes)

    # -- bytes in

    def receive(self, data: memoryview, now: int) -> None:
        """Take bytes that cannot be processed at once (see ClientInput.received)."""
        if self.state is CLOSED:
            return
        if self.state is HEADER:
            data = self._take_protocol_header(data)
            if not data:
                return
        if self.reader.lost:
            self._look_for_close_ok(data)
            return
        self.reader.receive(data, now)
        self.advance()

    def _look_for_close_ok(self, data: memoryview) -> None:
        """Ignore all but the client's close-ok, because frames can no longer be told apart."""
        self._tail = (self._tail + bytes(data[-len(CLOSE_OK) :]))[-len(CLOSE_OK) :]
        if self._tail == CLOSE_OK:
            self.close_socket()

    def resumed(self, error: Exception | None) -> None:
        """Continue after an awaited operation has ended, with `error` if it failed."""
        self.waits -= 1
        if self.state is CLOSED:
            return
        if error is not None:
            self.failed(error)
        self.advance()

    def advance(self) -> None:
        """Process unread bytes for at most one turn's share of time."""
        reader, self._stop_ns = self.reader, 0
        while not self.waits and self.state is not CLOSED:
            self.method_ids = NO_METHOD
            try:
                if self.state is RUNNING:
                    self.update_routes()
                if not self._take_step():
                    break
            except Exception as error:  # noqa: BLE001  # whatever it is, only this connection ends
                self.failed(error)
            if reader.unread and not self.waits and self._has_had_its_share():
                self._defer()
                break
        if not self.waits:
            self._event = None  # it may be a large message
        if reader.leaves:
            self.note_unfinished()
            if reader.unread:
                reader.stash()

    def _has_had_its_share(self) -> bool:
        """Whether the turn's share of time is used up; the first step is always allowed."""
        now_ns = self.transport.monotonic_ns()
        self._stop_ns = self._stop_ns or now_ns + self._turn_ns
        return now_ns >= self._stop_ns

    def _take_step(self) -> bool:
        """Handle the next event, or collect what the reader gathered. Returns whether to go on."""
        reader = self.reader
        event = self.again or self.next_event()
        self.again = None
        if event:
            self._event = event
            self._handle(*event)
            if self.outbox.is_full and not self.waits:
                self.wait_for(self.transport.room())  # answers are no way to fill the memory
            # What came before the event was taken in before it was handled.
            return reader.unread > 0 or self.rate_hold is not None
        if reader.paused:
            return True
        return self.rate_hold is not None and self.rate_hold.goes_on()

    def _defer(self) -> None:
        """Put off the rest of what was read to a later turn, so that others are served."""
        try:
            self.collect()
        except Exception as error:  # noqa: BLE001  # as above
            self.failed(error)
        if not self.waits:
            self.transport.defer()

    def _publish(self, number: int, publish: Publish) -> None:
        """Route a message that left the fast path.

        Earlier settlements of the channel come first; the message's confirm is collected only after
        it was routed, so that a basic.return precedes the confirm, and the confirm waits for the
        right queues. Messages of one read that features take are confirmed together: the next other
        event, or the end of the turn, collects them.
        """
        channel = self.channels.by_number.get(number)
        if channel is None or not channel.alive:
            return  # it ended while a permission was asked for
        channel.collect_settles()
        self.method_ids = BASIC_PUBLISH
        is_taken = channel.published(publish)
        if is_taken and self.reader.unread:
            return
        if not self.waits:  # else there are copies to be made yet, which the confirm must wait for
            self.collect()

    def touch_packed(self, filled: list[BatchBuilder], *, large: bool = False) -> None:
        """Hand very many packed builders, or large ones, to the turn, and wait for their flush."""
        number = self.broker.turn.touch_packed(filled, large=large)
        if number:
            self.wait_for(self._flushed(number))

    async def _flushed(self, number: int) -> None:
        """Wait until parked builders are flushed: a message to thousands of queues fills memory.

        What waits for its queue to be opened fills it, too.
        """
        turn = self.broker.turn
        while not turn.is_flushed(number):
            await self.transport.others()
        while turn.opening_count:
            await self.transport.pause(OPENING_LOOK_SECONDS)

    def note_unfinished(self) -> None:
        """Report the size of this connection's unfinished messages, for which it may be paused."""
        self.reader.noted = self.reader.unfinished
        half_sent = self.reader.unfinished + self._transaction_bytes
        if half_sent >= NOTED_BYTES_MIN:
            self.check_alarms()
            self._unfinished.note(self, half_sent)
        elif self._is_noted:
            self._unfinished.note(self, 0)
        self._is_noted = half_sent >= NOTED_BYTES_MIN

    def count_transaction(self, size: int) -> None:
        """Add `size` bytes (may be negative) to the publishes that wait for a tx.commit."""
        self._transaction_bytes += size
        self.note_unfinished()

    def _handle(self, number: int, event: bytes | Publish | ChannelError) -> None:
        self.channel_number = number
        if isinstance(event, Publish):
            self._publish(number, event)
            return
        self.collect()
        if self.waits:  # for what came before it
            self.again = self._event
            return
        if isinstance(event, ChannelError):
            self.method_ids = BASIC_PUBLISH
            raise event
        self.method_ids = method_ids(event)
        method = decode_method(event)
        with acting_as(self.user):
            self._handle_method(number, method)

    def _handle_method(self, number: int, method: base.Frame) -> None:
        channel = self.channels.by_number.get(number)
        operation = self.operations.get(type(method))
        if operation is not None and channel is not None and channel.alive:
            work = operation(channel, method)
            if work is not None:
                self.wait_for(work)
        else:
            self._handle_other(number, channel, method)

    def _handle_other(self, number: int, channel: Channel | None, method: base.Frame) -> None:
        """Handle a frame that is not an operation of an open channel."""
        if number == 0:
            self.wait_for(handle_connection_method(self, method))
            return
        if self.state is ConnectionState.CLOSING:
            return
        if self.state is not RUNNING:
            raise unexpected(self.state)
        if channel is not None and not channel.alive and not isinstance(method, CHANNEL_ENDS):
            return  # it closed after the reader had read this
        if isinstance(method, CHANNEL_METHODS):
            self.channels.handle(number, channel, method)
        elif channel is None:
            raise ConnectionClosingError(504, "expected 'channel.open'")
        else:
            raise ConnectionClosingError(503, "unimplemented method")

    def take_time(self, steps: Iterator[None]) -> None:
        """Run `steps`, which may be long: at once for a turn's share, the rest in later turns.

        The connection is not read before they are done.
        """
        self._steps.append(steps)
        if len(self._steps) == 1 and not self._take_steps():
            self.wait_for(self._take_all_steps())

    async def _take_all_steps(self) -> None:
        await self.transport.others()
        while not self._take_steps():
            await self.transport.others()

    def _take_steps(self) -> bool:
        """Run steps for a turn's share of time. Returns whether all are done."""
        now_ns, steps = self.transport.monotonic_ns, self._steps
        stop_ns = now_ns() + self._turn_ns
        with acting_as(self.user):
            while steps:
                try:
                    for _ in steps[0]:
                        if now_ns() >= stop_ns:
                            return False
                except Exception as error:  # noqa: BLE001  # what comes next has its own to give
                    if self.state is RUNNING:
                        self.failed(error)
                    else:
                        self.broker.report(self, error)
                del steps[0]
        return True

    # -- the handshake and the end

    def _take_protocol_header(self, data: memoryview) -> memoryview:
        missing = PROTOCOL_HEADER_BYTES - len(self._header)
        self._header += bytes(data[:missing])
        if len(self._header) < PROTOCOL_HEADER_BYTES and any(
            header.startswith(self._header) for header in handshake.PROTOCOL_HEADERS
        ):
            return data[:0]
        if self._header not in handshake.PROTOCOL_HEADERS:
            reports.not_amqp(self, self._header)
            self.outbox.write(handshake.PROTOCOL_HEADER)
            self.close_socket()
            return data[:0]
        self._header = b""
        self.state = ConnectionState.START
        mechanisms = offered(
            self.transport.certificate_login, self.configuration.anonymous_login_user
        )
        broker = self.broker
        name = broker.parameters.cluster_name
        self.send(handshake.start(self.configuration, broker.platform, mechanisms, name))
        return data[missing:]

    def credential_expired(self) -> None:
        """Close the connection (320), because its credential has expired and was not renewed."""
        self.shut(ConnectionClosingError(320, "credential expired"))

    # -- errors

    def failed(self, error: Exception) -> None:
        """Answer a failure: close the channel or the connection, or ask and try again."""
        with acting_as(self.user):
            self._answer_failure(error)

    def _answer_failure(self, error: Exception) -> None:
        if isinstance(error, UnansweredError):
            self.again = self._event  # it has changed nothing: permissions come first
            self.wait_for(error.ask())
            return
        if not isinstance(error, AmqpError):
            self.broker.report(self, error)
            if self.state is ConnectionState.CLOSING:
                self.close_socket()  # what is wrong did not end with the connection.close
                return
            error = ConnectionClosingError(541, BROKER_ERROR)
        error.method_ids = error.method_ids or self.method_ids
        if isinstance(error, ChannelError) and self.channel_number in self.channels.by_number:
            self.channels.close(self.channel_number, error)
        else:
            self.shut(error)

    def shut(self, error: AmqpError) -> None:
        """Close the connection with a reply code and text; wait a while for its close-ok."""
        if self.state in (ConnectionState.CLOSING, CLOSED):
            return
        reports.connection_failed(self, error)
        self.state = ConnectionState.CLOSING
        self.send(closing(commands.Connection.Close, error))
        self.transport.close(after_seconds=self.configuration.handshake_timeout_seconds)
        self.release()

    def close_channel(self, number: int, error: ChannelError) -> None:
        """Send channel.close with an error, if that channel is open."""
        self.channels.close(number, error)

    def close_socket(self) -> None:
        """Close the socket once the output is sent, without waiting for the client."""
        self.state = CLOSED
        self.take_time(self._ending())

    def _ending(self) -> Iterator[None]:
        yield from self._releasing()
        self.transport.close()

    def release(self) -> None:
        """Release all that the connection holds. Called when it ends, for whatever reason."""
        self.take_time(self._releasing())

    def _releasing(self) -> Iterator[None]:
        self.unblock_all()
        self._end_rates()
        yield from self.channels.releasing()
        self.note_unfinished()
        if self in self.broker.connections:
            self.broker.connections.discard(self)
            self.broker.usage.ended(self)
            yield from self.broker.release_owner(self.vhost, self)
            announcements.connection_closed(self)

    def lost(self, reason: str = "", *, cut: bool = False) -> None:
        """Handle the loss of the socket, for `reason` if known; `cut`: this side closed it."""
        reports.lost(self, self.state, reason, cut=cut)
        self.state = CLOSED
        self.release()

    # -- what the broker and the node tell all connections

    def alarm_changed(self, reason: str) -> None:
        """Block or unblock publishing connections on an alarm; others check when they publish."""
        if not reason:
            self.unblock(Cause.ALARM)
        elif self.channels.have_published or self._is_noted:
            self.block(Cause.ALARM, reason)

    def follow_rates(self) -> None:
        """Set the rate limits anew, when the connection opens or a limit has changed."""
        if self.state is not RUNNING:
            return
        was_held = self.rate_hold is not None and self.rate_hold.is_holding
        self._end_rates()
        meter = self.limits.follow()
        self.rate_hold = None if meter is None else RateHold(self, meter)
        self.channels.follow_rates()
        if was_held:  # not at once: one of its own methods may have changed the limit
            self.broker.timers.after(0, self.go_on)

    def _end_rates(self) -> None:
        if self.rate_hold is not None:
            self.rate_hold.end()
            self.rate_hold = None

    def go_on(self) -> None:
        """Process unread bytes, unless an operation is being waited for."""
        if self.reader.unread or self.reader.stopped:
            self.advance()

    def choose_paths(self) -> None:
        """Follow the virtual host's settings: its firehose, and whether messages create queues."""
        self.channels.choose_paths()

    def check_acknowledged(self, now_ms: int) -> None:
        """Close the channels with a delivery that was not settled within the consumer timeout."""
        self.channels.check_acknowledged(now_ms)
