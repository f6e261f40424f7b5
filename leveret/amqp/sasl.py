"""SASL: from a client's response to the name and password it claims. Nothing is verified here.

PLAIN       [authorization] NUL name NUL password          (RFC 4616)
AMQPLAIN    field table without its length: LOGIN and PASSWORD, long strings
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from leveret.errors import ConnectionClosingError
from leveret.ports import tables

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = [
    "MECHANISMS",
    "Credentials",
    "parse_amqplain",
    "parse_plain",
    "parse_response",
    "refusal",
]


class Credentials(NamedTuple):
    """What the client claims to be and the proof it offers."""

    user: str
    password: str


def parse_response(mechanism: str, response: bytes) -> Credentials:
    """Read the response that `connection.start-ok` carries.

    Raises ConnectionClosingError: 503 for a mechanism that is not offered, 403 for a response that
    is not what the mechanism asks for.
    """
    parse = MECHANISMS.get(mechanism)
    if parse is None:
        raise ConnectionClosingError(503, f"unknown authentication mechanism '{mechanism}'")
    return parse(response)


def parse_plain(response: bytes) -> Credentials:
    """Read a PLAIN response. Acting for somebody else is not offered: RabbitMQ refuses it too."""
    parts = response.split(b"\0")
    if len(parts) != 3 or parts[0]:
        raise refusal("PLAIN")
    return _credentials("PLAIN", parts[1], parts[2])


def parse_amqplain(response: bytes) -> Credentials:
    """Read an AMQPLAIN response, RabbitMQ's table form."""
    try:
        table = tables.decode_table(len(response).to_bytes(4, "big") + response)
    except tables.MalformedFieldError as error:
        raise refusal("AMQPLAIN") from error
    login, password = table.get("LOGIN"), table.get("PASSWORD")
    if not isinstance(login, str | bytes) or not isinstance(password, str | bytes):
        raise refusal("AMQPLAIN")
    return _credentials("AMQPLAIN", login, password)


def refusal(mechanism: str) -> ConnectionClosingError:
    """Build the one answer to every failed login: it must not tell which half was wrong."""
    return ConnectionClosingError(
        403,
        f"Login was refused using authentication mechanism {mechanism}. "
        "For details see the broker logfile.",
    )


def _credentials(mechanism: str, user: bytes | str, password: bytes | str) -> Credentials:
    try:
        return Credentials(_text(user), _text(password))
    except UnicodeDecodeError as error:
        raise refusal(mechanism) from error


def _text(value: bytes | str) -> str:
    return value if isinstance(value, str) else value.decode()


# In the order in which connection.start offers them.
MECHANISMS: dict[str, Callable[[bytes], Credentials]] = {
    "PLAIN": parse_plain,
    "AMQPLAIN": parse_amqplain,
}
