"""Reasons why a connection is not read, and the client's notice of them (connection.blocked).

An alarm blocks connections that publish, a rate those that publish too fast, and too many
unfinished messages those that have begun one. Consumers on other connections are still served,
because they free resources; those on a blocked connection are blocked with it, as in RabbitMQ.
"""

from __future__ import annotations

import weakref
from enum import Enum, auto
from typing import TYPE_CHECKING

from pamqp import commands

from leveret.amqp.handshake import ConnectionState
from leveret.amqp.methods import build

if TYPE_CHECKING:
    from leveret.amqp.connection import Connection

__all__ = ["Cause", "Holds"]

REASON_BYTES_MAX = 255  # a short string holds no more


class Cause(Enum):
    """Reason to block a connection."""

    ALARM = auto()
    RATE = auto()
    UNFINISHED = auto()


class Holds:
    """Causes that keep a connection from publishing. The client gets the first one as reason."""

    __slots__ = ("_causes", "_connection")

    def __init__(self, connection: Connection) -> None:
        self._connection = weakref.proxy(connection)  # which has them: see Channels
        self._causes: set[Cause] = set()

    @property
    def active(self) -> bool:
        """Whether anything blocks the connection."""
        return bool(self._causes)

    def begin(self, cause: Cause, reason: str) -> None:
        """Block the connection for `cause`; the client is told the `reason` of the first cause."""
        connection = self._connection
        if cause in self._causes or connection.state is not ConnectionState.RUNNING:
            return
        self._causes.add(cause)
        if len(self._causes) == 1:
            if connection.client_understands("connection.blocked"):
                text = reason.encode()[:REASON_BYTES_MAX].decode(errors="ignore")
                connection.send(build(commands.Connection.Blocked, reason=text))
            connection.transport.hold(held=True)

    def end(self, cause: Cause) -> None:
        """Remove a cause; unblock the connection if it was the last."""
        if cause not in self._causes:
            return
        self._causes.remove(cause)
        if not self._causes:
            if self._connection.client_understands("connection.blocked"):
                self._connection.send(commands.Connection.Unblocked())
            self._connection.transport.hold(held=False)

    def give_up(self) -> None:
        """Read again, whatever the causes: the connection is closing and waits for close-ok."""
        if self._causes:
            self._causes.clear()
            self._connection.transport.hold(held=False)
