"""Client properties of connection.start-ok, decoded only after the login.

Clients name their product, version and platform, and list their capabilities in a table of its own.
Before the login the table is kept as bytes. Afterwards only flat values and capabilities are kept,
since they are held for as long as the connection is.
"""

from __future__ import annotations

from typing import Any

from leveret.amqp.methods import decode_raw_table, decode_raw_value

__all__ = ["CAPABILITIES_MAX", "client_properties"]

CAPABILITIES_MAX = 64  # RabbitMQ's clients know some ten
CAPABILITIES = "capabilities"
NESTED = b"AF"  # letters of arrays and tables


def client_properties(encoded: bytes, properties_max: int) -> dict[str, Any]:
    """Return capabilities and flat values of a table, in order, `properties_max` in all.

    Anything else is left out rather than refused: nothing depends on it, and RabbitMQ accepts
    anything. Raises ConnectionClosingError 501 and 502 if it is not a valid table.
    """
    fields = decode_raw_table(encoded)
    found: dict[str, Any] = {}
    left = properties_max - (CAPABILITIES in fields)
    for name, value in fields.items():
        if name == CAPABILITIES and value[:1] == b"F":
            found[name] = _capabilities(value)
        elif left and value[:1] not in NESTED:
            found[name] = decode_raw_value(value)
            left -= 1
    return found


def _capabilities(announced: bytes) -> dict[str, bool]:
    """Return the client's boolean capabilities."""
    values = decode_raw_table(announced[5:])  # behind the letter and the length
    flags = [(name, value == b"t\x01") for name, value in values.items() if value[:1] == b"t"]
    return dict(flags[:CAPABILITIES_MAX])
