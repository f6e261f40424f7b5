"""How an alarm holds one connection: nothing is read of it, and its client is told.

Only connections that publish are held; consumers must go on, for they are what makes room.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pamqp import commands

from leveret.amqp.handshake import State
from leveret.amqp.methods import build

if TYPE_CHECKING:
    from leveret.amqp.connection import Connection


class AlarmHold:
    """Whether an alarm keeps a connection from publishing."""

    __slots__ = ("_connection", "active")

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self.active = False

    def begin(self, reason: str) -> None:
        """Hold the connection, unless it is held already: it has published under an alarm."""
        connection = self._connection
        if not self.active and connection.state is State.RUNNING:
            self.active = True
            if connection.client_understands("connection.blocked"):
                connection.send(build(commands.Connection.Blocked, reason=reason))
            connection.link.hold(held=True)

    def end(self) -> None:
        """The alarm is over."""
        if self.active:
            self.active = False
            if self._connection.client_understands("connection.blocked"):
                self._connection.send(commands.Connection.Unblocked())
            self._connection.link.hold(held=False)

    def give_up(self) -> None:
        """Read again, whatever the alarm: the connection is closing, and waits for a close-ok."""
        if self.active:
            self.active = False
            self._connection.link.hold(held=False)
