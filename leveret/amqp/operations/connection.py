"""Methods of class connection: open, update-secret, close.

`operation(connection, method)` moves the connection to its next state, or raises
ConnectionClosingError. An awaitable result must end before the next frame is handled.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pamqp import commands

from leveret.amqp import announcements, handshake, reports
from leveret.amqp.client_properties import client_properties
from leveret.amqp.handshake import ConnectionState
from leveret.amqp.methods import FRAME_OVERHEAD_BYTES, NO_METHOD
from leveret.amqp.sasl import parse_response, refusal
from leveret.core.access.authentication import explain_refusal
from leveret.core.access.permissions import check_vhost
from leveret.errors import ConnectionClosingError
from leveret.features.rates.rates import ConnectionLimits
from leveret.ports.authentication import SecretRefusedError, TooManyGuessesError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from pamqp import base

    from leveret.amqp.protocol import ConnectionBase
    from leveret.ports.authentication import Rights


def handle_connection_method(
    connection: ConnectionBase, method: base.Frame
) -> Awaitable[None] | None:
    """Handle a method of channel 0, in any state of the connection."""
    if isinstance(method, commands.Connection.Close):
        if connection.state is not ConnectionState.CLOSING:
            reports.closed_by_client(connection, method)
        connection.close_socket(commands.Connection.CloseOk())
        return None
    state = connection.state
    if state is ConnectionState.CLOSING:
        if isinstance(method, commands.Connection.CloseOk):
            connection.close_socket()
        return None
    expected = handshake.EXPECTED.get(state)
    if expected is not None:
        if not isinstance(method, expected):
            raise unexpected(state)
        return OPENING[type(method)](connection, method)
    if isinstance(method, commands.Connection.UpdateSecret):
        return update_secret(connection, method)
    raise unexpected(state)


def unexpected(state: ConnectionState) -> ConnectionClosingError:
    """Build the 504 for a method that the connection's state does not accept."""
    return ConnectionClosingError(504, f"unexpected method in connection state {state.value}")


async def start_ok(connection: ConnectionBase, method: commands.Connection.StartOk) -> None:
    """Authenticate the client (connection.start-ok)."""
    connection.mechanism = method.mechanism
    try:
        rights = await _authenticated(connection, method)
    except ConnectionClosingError as error:
        if error.code == 403:
            error.method_ids = NO_METHOD
            await _refuse_login(connection, method)
        raise
    if connection.state is not ConnectionState.START:
        return  # the node stops, or the client has gone
    _read_properties(connection, method)
    connection.take_rights(rights)
    announcements.login_accepted(connection)
    connection.state = ConnectionState.TUNE
    connection.send(handshake.tune(connection.configuration))


async def _authenticated(connection: ConnectionBase, method: commands.Connection.StartOk) -> Rights:
    """Return the rights of the authenticated user. Raises ConnectionClosingError 403 and 503."""
    transport, configuration = connection.transport, connection.configuration
    if transport.rights is not None:
        return transport.rights
    try:
        credentials = parse_response(
            method.mechanism,
            _octets(method.response),
            transport.certificate_login,
            configuration.anonymous_login_user,
        )
    except ConnectionClosingError as error:
        if error.code == 403:
            announcements.login_refused(connection, "", "the response is malformed")
        raise
    user, reason = credentials.user, ""
    try:
        rights = await connection.broker.authenticate(*credentials, transport.endpoints.peer_host)
    except TooManyGuessesError as error:
        rights = None
        reason = f"too many failed logins, the next one counts in {error.wait_ms / 1000:.1f} s"
    if rights is None:
        access, backends = connection.broker.access, configuration.auth_backends
        reason = reason or explain_refusal(access, backends, user)
    elif not transport.peer_is_loopback and rights.user in configuration.loopback_users:
        reason = "this user may connect from this machine only (loopback_users)"
    if rights is None or reason:
        announcements.login_refused(connection, user, reason)
        raise refusal(method.mechanism)
    return rights


def _octets(value: bytes | str) -> bytes:
    """Return a long string as bytes: pamqp decodes it to text where it can."""
    return value if isinstance(value, bytes) else value.encode()


def _read_properties(connection: ConnectionBase, method: commands.Connection.StartOk) -> None:
    """Store the client properties. Raises ConnectionClosingError 501 and 502."""
    encoded: Any = method.client_properties  # unopened: see decode_method
    properties_max = connection.configuration.client_properties_max
    connection.client_properties = client_properties(encoded, properties_max)
    connection.capabilities = handshake.client_capabilities(connection.client_properties)


async def _refuse_login(connection: ConnectionBase, method: commands.Connection.StartOk) -> None:
    """Delay, then close; only clients that announced the capability get a close method (B-008)."""
    await connection.transport.pause(connection.configuration.login_delay_seconds)
    _read_properties(connection, method)
    if not connection.client_understands("authentication_failure_close"):
        connection.close_socket()


def tune_ok(connection: ConnectionBase, method: commands.Connection.TuneOk) -> None:
    """Apply the limits that the client has chosen (connection.tune-ok)."""
    tuned = connection.tuned = handshake.negotiate(connection.configuration, method)
    connection.reader.set_frame_max(tuned.frame_max)
    connection.outbox.frame_size_max = tuned.frame_max - FRAME_OVERHEAD_BYTES
    connection.transport.set_heartbeat(tuned.heartbeat_seconds)
    connection.state = ConnectionState.OPEN


def open_vhost(connection: ConnectionBase, method: commands.Connection.Open) -> None:
    """Open a virtual host (connection.open)."""
    name = method.virtual_host
    vhost = connection.broker.vhosts.get(name)
    if vhost is None:
        raise ConnectionClosingError(530, f"vhost {name} not found")
    connection.broker.admission.check_connection(vhost.definition, connection.user)
    check_vhost(connection.rights, name)
    connection.vhost = vhost
    connection.reader.vhost = connection.outbox.vhost = vhost.counters
    connection.name = str(connection.transport.endpoints)
    connection.connected_at_ms = connection.transport.wall_ms()
    connection.broker.connections.add(connection)
    connection.state = ConnectionState.RUNNING
    connection.transport.opened()
    connection.limits = ConnectionLimits(connection.broker.rates, connection.user, vhost)
    connection.follow_rates()
    connection.send(commands.Connection.OpenOk())
    announcements.connection_opened(connection)


async def update_secret(
    connection: ConnectionBase, method: commands.Connection.UpdateSecret
) -> None:
    """Replace the user's credential before it expires (connection.update-secret)."""
    try:
        secret = _octets(method.new_secret or "").decode()
        rights = await connection.rights.renewed(secret)
    except (SecretRefusedError, UnicodeDecodeError):
        raise ConnectionClosingError(530, "New secret was refused by one of the backends") from None
    if connection.state is ConnectionState.RUNNING:
        connection.take_rights(rights)
        connection.send(commands.Connection.UpdateSecretOk())


OPENING: dict[type, Callable[..., Awaitable[None] | None]] = {
    commands.Connection.StartOk: start_ok,
    commands.Connection.TuneOk: tune_ok,
    commands.Connection.Open: open_vhost,
}
