"""The channels of one connection, by number: open, close, release.

The connection finds the channel of each method in `by_number`, passes on the methods of class
channel and the events that concern all channels. Frames about a channel go into the connection's
outbox.
"""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING

from pamqp import commands

from leveret.amqp import announcements, reports
from leveret.amqp.channel import Channel
from leveret.amqp.methods import NO_METHOD, build, closing, encode_method
from leveret.core.chores import drain
from leveret.errors import ChannelError, ConnectionClosingError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pamqp import base

    from leveret.amqp.protocol import ConnectionBase

CHANNEL_ENDS = (commands.Channel.Close, commands.Channel.CloseOk)
CHANNEL_METHODS = (commands.Channel.Open, *CHANNEL_ENDS)


class Channels:
    """Channels that a connection has open, and those that still wait for close-ok."""

    __slots__ = ("_owner", "by_number")

    def __init__(self, connection: ConnectionBase) -> None:
        self._owner = weakref.ref(connection)
        self.by_number: dict[int, Channel] = {}

    @property
    def _connection(self) -> ConnectionBase:
        connection = self._owner()
        assert connection is not None  # the connection owns this
        return connection

    @property
    def have_published(self) -> bool:
        """Whether anything was published on one of the channels."""
        return any(channel.slot.published for channel in self.by_number.values())

    def handle(self, number: int, channel: Channel | None, method: base.Frame) -> None:
        """Handle one of CHANNEL_METHODS. `channel` is the open channel of that number, if any."""
        if isinstance(method, commands.Channel.Open):
            self._open(number, channel)
        elif channel is None:
            if isinstance(method, commands.Channel.Close):
                raise ConnectionClosingError(504, "expected 'channel.open'")
        elif isinstance(method, commands.Channel.Close):
            self._connection.take_time(self._dropping(number, commands.Channel.CloseOk()))
        elif channel.alive:
            raise ConnectionClosingError(503, "unimplemented method")  # a close-ok to nothing
        else:
            self._connection.take_time(self._dropping(number))

    def close(self, number: int, error: ChannelError, *, failed: bool = True) -> None:
        """Send channel.close with an error, and ignore what the client still sends on the channel.

        `failed`: see Channel.release.
        """
        channel = self.by_number.get(number)
        if channel is None or not channel.alive:
            return
        reports.channel_failed(self._connection, number, error)
        self._connection.take_time(self._closing(channel, error, failed=failed))

    def _closing(self, channel: Channel, error: ChannelError, *, failed: bool) -> Iterator[None]:
        if channel.alive:  # unless another error has come first
            yield from channel.releasing(failed=failed)
            self._send(channel.number, closing(commands.Channel.Close, error))

    def releasing(self) -> Iterator[None]:
        """Release all channels in steps, because the connection ends."""
        channels, self.by_number = drain(self.by_number.values()), {}
        for channel in channels:
            try:
                yield from channel.releasing()
            except Exception as error:  # noqa: BLE001  # the other channels have theirs to give
                self._connection.broker.report(self._connection, error)

    def check_acknowledged(self, now_ms: int) -> None:
        """Close the channels with a delivery that was not settled within the consumer timeout."""
        timeout_ms = self._connection.configuration.consumer_timeout_ms
        for number, channel in list(self.by_number.items()):
            if channel.alive:
                try:
                    channel.check_acknowledged(now_ms, timeout_ms)
                except ChannelError as error:
                    self.close(number, error, failed=False)

    def wake_consumers(self) -> None:
        """Wake the queues of all consumers, because the socket takes more."""
        for channel in self.by_number.values():
            channel.wake_consumers()

    def follow_rates(self) -> None:
        """Give each consumer the meter that applies to it now, or none."""
        limits = self._connection.limits
        for channel in self.by_number.values():
            for consumer in channel.consumers.values():
                consumer.follow(limits)
            channel.wake_consumers()

    def choose_paths(self) -> None:
        """Follow the virtual host's settings: its firehose, and whether messages create queues."""
        for channel in self.by_number.values():
            channel.choose_path()

    def _open(self, number: int, channel: Channel | None) -> None:
        if channel is not None:
            raise ConnectionClosingError(504, "second 'channel.open' seen")
        try:
            self._check_limits()
        except ConnectionClosingError as error:
            error.method_ids = NO_METHOD
            raise
        self.by_number[number] = channel = Channel(self._connection, number)
        self._send(number, build(commands.Channel.OpenOk, channel_id=""))
        announcements.channel_opened(channel)

    def _check_limits(self) -> None:
        """Raise 530 if the limits allow no further channel, whatever its number."""
        connection = self._connection
        opened = len(self.by_number)
        limit = connection.tuned.channel_max or connection.configuration.channel_max
        if opened >= limit:
            raise ConnectionClosingError(
                530,
                f"number of channels opened ({opened}) has reached the negotiated channel_max "
                f"({limit})",
            )
        connection.broker.admission.check_channel(connection.user)

    def _dropping(self, number: int, answer: base.Frame | None = None) -> Iterator[None]:
        """Release a channel in steps, then free its number."""
        channel = self.by_number.pop(number)
        yield from channel.releasing()
        self._connection.reader.close_channel(number)
        if answer is not None:
            self._send(number, answer)

    def _send(self, number: int, method: base.Frame) -> None:
        self._connection.outbox.write(encode_method(number, method))
        self._connection.touch()
