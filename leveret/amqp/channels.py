"""The channels of one connection: opened, closed and ended under their numbers.

The connection finds the channel of each method in `by_number`, hands over the methods of class
channel, and tells all channels together what happens to it. What is said about a channel goes into
the connection's outbox.
"""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING

from pamqp import commands

from leveret.amqp import announcements, reports
from leveret.amqp.channel import Channel
from leveret.amqp.methods import NO_METHOD, build, closing, encode_method
from leveret.amqp.timeouts import check_acknowledged
from leveret.core.chores import drain
from leveret.errors import ChannelError, ConnectionClosingError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pamqp import base

    from leveret.amqp.connection import Connection

CHANNEL_ENDS = (commands.Channel.Close, commands.Channel.CloseOk)
CHANNEL_METHODS = (commands.Channel.Open, *CHANNEL_ENDS)


class Channels:
    """The channels that a connection has open, and those whose close-ok has not come yet.

    What a connection is made of refers to it weakly, so that a lost one goes with its socket: the
    garbage collector would have to look through everything for thousands of them.
    """

    __slots__ = ("_owner", "by_number")

    def __init__(self, connection: Connection) -> None:
        self._owner = weakref.ref(connection)
        self.by_number: dict[int, Channel] = {}

    @property
    def _connection(self) -> Connection:
        connection = self._owner()
        assert connection is not None  # it has them
        return connection

    @property
    def have_published(self) -> bool:
        """Whether anything was published on one of them."""
        return any(channel.slot.published for channel in self.by_number.values())

    def handle(self, number: int, channel: Channel | None, method: base.Frame) -> None:
        """Handle one of CHANNEL_METHODS. `channel` is what the number stands for."""
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
        """Tell the client why its channel ends, and ignore what it still sends on it.

        `failed`: see Channel.release.
        """
        channel = self.by_number.get(number)
        if channel is None or not channel.alive:
            return
        reports.channel_failed(self._connection, number, error)
        self._connection.take_time(self._closing(channel, error, failed=failed))

    def _closing(self, channel: Channel, error: ChannelError, *, failed: bool) -> Iterator[None]:
        yield from channel.releasing(failed=failed)
        self._send(channel.number, closing(commands.Channel.Close, error))

    def releasing(self) -> Iterator[None]:
        """Give back all that they held, in steps: the connection ends."""
        channels, self.by_number = drain(self.by_number.values()), {}
        for channel in channels:
            try:
                yield from channel.releasing()
            except Exception as error:  # noqa: BLE001  # the other channels have theirs to give
                self._connection.broker.report(self._connection, error)

    def check_acknowledged(self, now_ms: int) -> None:
        """Close those that have held a delivery for too long."""
        timeout_ms = self._connection.configuration.consumer_timeout_ms
        for number, channel in list(self.by_number.items()):
            if channel.alive:
                try:
                    check_acknowledged(channel, now_ms, timeout_ms)
                except ChannelError as error:
                    self.close(number, error, failed=False)

    def wake_consumers(self) -> None:
        """The socket takes more again: let the queues of all consumers go on."""
        for channel in self.by_number.values():
            channel.wake_consumers()

    def choose_paths(self) -> None:
        """Follow the virtual host: its firehose, and whether messages create queues."""
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
        """Refuse (530) a channel too many, whichever number it is to have."""
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
        """End a channel, in steps; its number is free afterwards."""
        channel = self.by_number.pop(number)
        yield from channel.releasing()
        self._connection.reader.close_channel(number)
        if answer is not None:
            self._send(number, answer)

    def _send(self, number: int, method: base.Frame) -> None:
        self._connection.outbox.write(encode_method(number, method))
        self._connection.touch()
