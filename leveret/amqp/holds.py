"""Why one connection is not read, and that its client is told (connection.blocked).

An alarm holds connections that publish, a rate those that publish too fast, and too many unfinished
messages those that have begun one. Consumers on other
connections go on, for they are what makes room; those on the same one are held with it, as in
RabbitMQ.
"""

from __future__ import annotations

import weakref
from enum import Enum, auto
from typing import TYPE_CHECKING

from pamqp import commands

from leveret.amqp.handshake import State
from leveret.amqp.methods import build

if TYPE_CHECKING:
    from leveret.amqp.connection import Connection

__all__ = ["Cause", "Holds"]

REASON_BYTES_MAX = 255  # a short string holds no more


class Cause(Enum):
    """Who may hold a connection."""

    ALARM = auto()
    RATE = auto()
    UNFINISHED = auto()


class Holds:
    """The causes that keep a connection from publishing. The client hears of the first one."""

    __slots__ = ("_causes", "_connection")

    def __init__(self, connection: Connection) -> None:
        self._connection = weakref.proxy(connection)  # which has them: see Channels
        self._causes: set[Cause] = set()

    @property
    def active(self) -> bool:
        """Whether anything holds the connection."""
        return bool(self._causes)

    def begin(self, cause: Cause, reason: str) -> None:
        """Hold the connection, unless this cause does already."""
        connection = self._connection
        if cause in self._causes or connection.state is not State.RUNNING:
            return
        self._causes.add(cause)
        if len(self._causes) == 1:
            if connection.client_understands("connection.blocked"):
                text = reason.encode()[:REASON_BYTES_MAX].decode(errors="ignore")
                connection.send(build(commands.Connection.Blocked, reason=text))
            connection.transport.hold(held=True)

    def end(self, cause: Cause) -> None:
        """This cause is over."""
        if cause not in self._causes:
            return
        self._causes.remove(cause)
        if not self._causes:
            if self._connection.client_understands("connection.blocked"):
                self._connection.send(commands.Connection.Unblocked())
            self._connection.transport.hold(held=False)

    def give_up(self) -> None:
        """Read again, whatever the causes: the connection is closing, and waits for a close-ok."""
        if self._causes:
            self._causes.clear()
            self._connection.transport.hold(held=False)
