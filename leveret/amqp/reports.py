"""Log lines about connections: opened, refused and why, lost, failed.

Each line names the connection as lists and metrics do. A client gets AMQP's reply text only, which
does not contain why a login failed; the log does.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pamqp import commands

from leveret.amqp.handshake import ConnectionState
from leveret.amqp.transport import LogLevel
from leveret.errors import REPLY_NAMES
from leveret.ports.log_text import one_line, quoted

if TYPE_CHECKING:
    from leveret.amqp.protocol import ConnectionBase
    from leveret.errors import AmqpError

__all__ = [
    "channel_failed",
    "closed_by_client",
    "connection_failed",
    "connection_opened",
    "login_refused",
    "lost",
    "not_amqp",
]

CONNECTION: Final = "connection"
CHANNEL: Final = "channel"
REPLY_SUCCESS: Final = 200
CONNECTION_FORCED: Final = 320  # by the operator, or because the node stops
INTERNAL_ERROR: Final = 541
LOGIN_REFUSED: Final = 403
METHOD_NAMES: Final = {
    (index >> 16, index & 0xFFFF): method.name.lower()  # type: ignore[attr-defined]  # they are classes
    for index, method in commands.INDEX_MAPPING.items()
}
HTTP_METHODS: Final = (b"GET ", b"POST", b"PUT ", b"HEAD", b"DELE", b"OPTI", b"PATC", b"PRI ")


def connection_opened(connection: ConnectionBase) -> None:
    """Log which client has opened which virtual host."""
    secured = " over TLS" if connection.transport.endpoints.is_secure else ""
    _tell(
        connection,
        LogLevel.INFO,
        f"opened by user {quoted(connection.user)} in vhost {quoted(connection.vhost.name)}, "
        f"authenticated by {one_line(connection.mechanism)}{secured}{_client(connection)}",
    )


def closed_by_client(connection: ConnectionBase, method: commands.Connection.Close) -> None:
    """Log that the client has closed the connection, with its reason if it gave one."""
    said = ""
    if method.reply_code not in {0, REPLY_SUCCESS}:
        said = f", which says {method.reply_code} {quoted(method.reply_text)}"
    _tell(connection, LogLevel.INFO, f"closed by the client{said}{_after(connection)}")


def lost(connection: ConnectionBase, state: ConnectionState, reason: str, *, cut: bool) -> None:
    """Log that the socket is gone without a connection.close.

    `cut`: this side closed it; otherwise an empty `reason` means that the client closed it. Sockets
    on which nothing was sent, such as a load balancer's probes, are logged at a lower level.
    """
    if state in {ConnectionState.CLOSING, ConnectionState.CLOSED}:
        return
    reason = reason or "the client closed the socket without connection.close"
    if state is ConnectionState.RUNNING:
        _tell(connection, LogLevel.WARNING, f"lost: {reason}{_after(connection)}")
    elif state is ConnectionState.HEADER and not cut:
        _tell(connection, LogLevel.DEBUG, f"ended before any byte of AMQP: {reason}")
    else:
        text = f"lost during the handshake (state {state.value}): {reason}{_client(connection)}"
        _tell(connection, LogLevel.WARNING, text)


def connection_failed(connection: ConnectionBase, error: AmqpError) -> None:
    """Log the error that closes a connection; refused logins have a line of their own."""
    if connection.state is ConnectionState.START and error.code == LOGIN_REFUSED:
        return
    level = {CONNECTION_FORCED: LogLevel.INFO, INTERNAL_ERROR: LogLevel.ERROR}.get(
        error.code, LogLevel.WARNING
    )
    _tell(connection, level, f"closed with {_error(error)}{_about(connection)}", code=error.code)


def channel_failed(connection: ConnectionBase, number: int, error: AmqpError) -> None:
    """Log the error that closes a channel."""
    connection.transport.log(
        CHANNEL,
        LogLevel.ERROR if error.code == INTERNAL_ERROR else LogLevel.WARNING,
        f"channel {number} of connection {connection.transport.endpoints} closed with"
        f" {_error(error)}{_about(connection)}",
        {**_fields(connection), "channel": number, "code": error.code},
    )


def login_refused(connection: ConnectionBase, user: str, reason: str) -> None:
    """Log why a login was refused; the reply text refers the client to the log."""
    connection.transport.log(
        CONNECTION,
        LogLevel.WARNING,
        f"connection {connection.transport.endpoints}: refused the login of user {quoted(user)} by "
        f"{one_line(connection.mechanism)}: {reason}{_client(connection)}",
        {**_fields(connection), "user": user},
    )


def not_amqp(connection: ConnectionBase, header: bytes) -> None:
    """Log what protocol a client speaks instead of AMQP 0-9-1, and the port for it."""
    _tell(connection, LogLevel.WARNING, f"closed: it began with {_guess(header)}")


def _guess(header: bytes) -> str:
    if header.startswith(HTTP_METHODS):
        return "an HTTP request; the web UI and the HTTP API are on http_port, metrics on theirs"
    if header.startswith(b"\x16\x03"):
        return "a TLS handshake on the port without TLS; TLS is on tls_port, with a certificate"
    if header.startswith((b"PROXY ", b"\r\n\r\n\x00\r\nQ")):
        return "a PROXY header, which is read with proxy_protocol = true only"
    if header.startswith(b"AMQP"):
        version = "-".join(str(octet) for octet in header[5:8])
        return f"the header of AMQP {version or 'of another version'}; this port speaks 0-9-1 only"
    return f"{header!r}, which is not AMQP"[1:]


def _tell(connection: ConnectionBase, level: LogLevel, text: str, **more: object) -> None:
    line = f"connection {connection.transport.endpoints} {text}"
    connection.transport.log(CONNECTION, level, line, {**_fields(connection), **more})


def _error(error: AmqpError) -> str:
    """Format reply code and text uncut: a short string would truncate it."""
    method = METHOD_NAMES.get(error.method_ids or (0, 0))
    where = f" on {method}" if method else ""
    return f"{error.code} {REPLY_NAMES[error.code]}{where}: {one_line(error.explanation, 1000)}"


def _about(connection: ConnectionBase) -> str:
    """Return user, virtual host and client software of the connection, as far as known."""
    parts = []
    if connection.user:
        parts.append(f"user {quoted(connection.user)}")
    if connection.name:  # it has entered one
        parts.append(f"vhost {quoted(connection.vhost.name)}")
    parts += _software(connection)
    return f" ({', '.join(parts)})" if parts else ""


def _client(connection: ConnectionBase) -> str:
    parts = _software(connection)
    return f" ({', '.join(parts)})" if parts else ""


def _software(connection: ConnectionBase) -> list[str]:
    """Return the client's connection name, product and version for the log."""
    said = {
        key: one_line(value)
        for key, value in connection.client_properties.items()
        if key in {"connection_name", "product", "version"} and isinstance(value, str)
    }
    product = " ".join(said[key] for key in ("product", "version") if key in said)
    parts = [f"name '{said['connection_name']}'"] if "connection_name" in said else []
    return [*parts, f"client {product}"] if product else parts


def _after(connection: ConnectionBase) -> str:
    seconds = (connection.transport.wall_ms() - connection.connected_at_ms) / 1000
    lasted = f", after {max(seconds, 0):.1f} s" if connection.name else ""
    return f"{lasted}{_about(connection)}"


def _fields(connection: ConnectionBase) -> dict[str, object]:
    """Return the connection's fields for JSON log lines."""
    fields: dict[str, object] = {"connection": str(connection.transport.endpoints)}
    if connection.user:
        fields["user"] = connection.user
    if connection.name:
        fields["vhost"] = connection.vhost.name
    return fields
