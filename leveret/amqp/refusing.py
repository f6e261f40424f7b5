"""Answer to a client of AMQP that a node cannot serve: one for all, known beforehand."""

from __future__ import annotations

import platform
from typing import TYPE_CHECKING

from pamqp import commands

from leveret.amqp import handshake
from leveret.amqp.methods import closing, encode_method

if TYPE_CHECKING:
    from leveret.config.handshake import HandshakeSettings
    from leveret.errors import ConnectionClosingError

__all__ = ["refusal_of_clients"]

# A client looks for one that it has before it reads on; it is never asked for it.
MECHANISMS = ("PLAIN", "AMQPLAIN", "EXTERNAL")


def refusal_of_clients(settings: HandshakeSettings, error: ConnectionClosingError) -> bytes:
    """Return what answers a protocol header: connection.start, and connection.close behind it.

    Nobody may say connection.close first: clients expect the server's properties.
    """
    start = handshake.start(settings, f"Python {platform.python_version()}", MECHANISMS)
    return encode_method(0, start) + encode_method(0, closing(commands.Connection.Close, error))
