"""SASL: the name and password that a client's response claims. Nothing is verified here.

PLAIN       [authorization] NUL name NUL password          (RFC 4616)
AMQPLAIN    field table without its length: LOGIN and PASSWORD, long strings
EXTERNAL    anything: the name is that of the client's certificate, which TLS has verified
ANONYMOUS   anything: the name is the operator's choice    (RFC 4505)
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
    "offered",
    "parse_amqplain",
    "parse_plain",
    "parse_response",
    "refusal",
]


class Credentials(NamedTuple):
    """User name that the client claims, and its password."""

    user: str
    password: str | None  # None where the mechanism has proved the name, or asks for no proof


def offered(certificate_login: str, anonymous_login_user: str) -> tuple[str, ...]:
    """Return the mechanisms offered to a connection; an empty argument disables its mechanism."""
    names = list(MECHANISMS)
    if anonymous_login_user:
        names.append("ANONYMOUS")
    if certificate_login:
        names.append("EXTERNAL")
    return tuple(names)


def parse_response(
    mechanism: str, response: bytes, certificate_login: str = "", anonymous_login_user: str = ""
) -> Credentials:
    """Parse the response of `connection.start-ok`; the last two arguments as in `offered`.

    Raises ConnectionClosingError: 503 for a mechanism that is not offered, 403 for a malformed
    response.
    """
    if mechanism not in offered(certificate_login, anonymous_login_user):
        what = "invalid" if mechanism in OTHER_MECHANISMS else "unknown"
        raise ConnectionClosingError(503, f"{what} authentication mechanism '{mechanism}'")
    if mechanism == "EXTERNAL":
        return Credentials(certificate_login, None)
    if mechanism == "ANONYMOUS":
        return Credentials(anonymous_login_user, None)
    return MECHANISMS[mechanism](response)


def parse_plain(response: bytes) -> Credentials:
    """Parse a PLAIN response. A different authorization identity is refused, as in RabbitMQ."""
    parts = response.split(b"\0", 3)
    if len(parts) != 3 or parts[0]:
        raise refusal("PLAIN")
    return _credentials("PLAIN", parts[1], parts[2])


def parse_amqplain(response: bytes) -> Credentials:
    """Parse an AMQPLAIN response, RabbitMQ's table form."""
    try:
        # Only two values are decoded, because the client has not logged in yet.
        table = tables.decode_raw_table(len(response).to_bytes(4, "big") + response)
        login, password = (
            tables.decode_value(table[name]) if name in table else None
            for name in ("LOGIN", "PASSWORD")
        )
    except tables.MalformedFieldError as error:
        raise refusal("AMQPLAIN") from error
    if not isinstance(login, str | bytes) or not isinstance(password, str | bytes):
        raise refusal("AMQPLAIN")
    return _credentials("AMQPLAIN", login, password)


def refusal(mechanism: str) -> ConnectionClosingError:
    """Build the error for every failed login; it must not tell if name or password was wrong."""
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


# Not offered to all clients: RabbitMQ distinguishes them from unknown mechanisms.
OTHER_MECHANISMS = ("ANONYMOUS", "EXTERNAL")
# Mechanisms for every connection, in the order in which connection.start offers them.
MECHANISMS: dict[str, Callable[[bytes], Credentials]] = {
    "PLAIN": parse_plain,
    "AMQPLAIN": parse_amqplain,
}
