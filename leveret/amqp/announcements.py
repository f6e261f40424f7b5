"""Events of connections, channels and consumers in `amq.rabbitmq.event` (core.events).

RabbitMQ identifies connections and channels by their Erlang processes; here the headers `pid`,
`connection` and `channel` carry their names, which tell them apart as well.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from leveret.amqp import reports
from leveret.core.events import address_term

if TYPE_CHECKING:
    from leveret.amqp.consumer import ChannelConsumer
    from leveret.amqp.protocol import ChannelBase, ConnectionBase

PROTOCOL = "{0,9,1}"


def login_accepted(connection: ConnectionBase) -> None:
    """Publish `user.authentication.success` for the connection's user."""
    _login(connection, "user.authentication.success", connection.user)


def login_refused(connection: ConnectionBase, user: str, reason: str) -> None:
    """Log a failed login and publish `user.authentication.failure`."""
    reports.login_refused(connection, user, reason)
    error = f"user '{user}' - invalid credentials"
    _login(connection, "user.authentication.failure", user, error=error)


def _login(connection: ConnectionBase, key: str, user: str, **more: object) -> None:
    events = connection.broker.events
    if events.wanted:
        ends = connection.transport.endpoints
        headers = {
            "connection_type": "network",
            "name": user,
            "connection_name": str(ends),
            "host": address_term(ends.host),
            "peer_host": address_term(ends.peer_host),
            "peer_port": ends.peer_port,
            "protocol": PROTOCOL,
            "auth_mechanism": connection.mechanism,
            "ssl": ends.is_secure,
        }
        events.emit(key, {**headers, **more})


def connection_opened(connection: ConnectionBase) -> None:
    """Log that a connection has opened its virtual host and publish `connection.created`."""
    reports.connection_opened(connection)
    events = connection.broker.events
    if not events.wanted:
        events.churn.happened("connection.created")
    else:
        ends = connection.transport.endpoints
        events.emit(
            "connection.created",
            {
                **_identity(connection),
                "type": "network",
                "host": address_term(ends.host),
                "port": ends.port,
                "peer_host": address_term(ends.peer_host),
                "peer_port": ends.peer_port,
                "ssl": ends.is_secure,
                "auth_mechanism": connection.mechanism,
                "protocol": PROTOCOL,
                "user": connection.user,
                "vhost": connection.vhost.name,
                "timeout": connection.tuned.heartbeat_seconds,
                "frame_max": connection.tuned.frame_max,
                "channel_max": connection.tuned.channel_max,
                "connected_at": connection.connected_at_ms,
            },
        )


def connection_closed(connection: ConnectionBase) -> None:
    """Publish `connection.closed`, whatever the reason."""
    connection.broker.events.emit("connection.closed", _identity(connection))


def _identity(connection: ConnectionBase) -> dict[str, object]:
    headers: dict[str, object] = {
        "pid": connection.name,
        "name": connection.name,
        "node": connection.broker.node_name,
        "client_properties": connection.client_properties,
    }
    provided = connection.client_properties.get("connection_name")
    return {**headers, "user_provided_name": provided} if isinstance(provided, str) else headers


def channel_opened(channel: ChannelBase) -> None:
    """Publish `channel.created`."""
    connection = channel.connection
    channel.broker.events.emit(
        "channel.created",
        {
            "pid": channel.name,
            "name": channel.name,
            "connection": connection.name,
            "number": channel.number,
            "user": connection.user,
            "vhost": channel.vhost.name,
            **_actor(channel),
        },
    )


def channel_closed(channel: ChannelBase) -> None:
    """Publish `channel.closed`, whether it was closed by itself or with its connection."""
    channel.broker.events.emit("channel.closed", {"pid": channel.name, **_actor(channel)})


def consumer_started(consumer: ChannelConsumer, *, exclusive: bool) -> None:
    """Publish `consumer.created`."""
    consumer.channel.broker.events.emit(
        "consumer.created",
        {
            **_consumer(consumer),
            "exclusive": exclusive,
            "ack_required": not consumer.no_ack,
            "prefetch_count": consumer.prefetch,
            "arguments": consumer.arguments,
        },
    )


def consumer_ended(consumer: ChannelConsumer) -> None:
    """Publish `consumer.deleted`, whoever cancelled the consumer."""
    consumer.channel.broker.events.emit("consumer.deleted", _consumer(consumer))


def _consumer(consumer: ChannelConsumer) -> dict[str, object]:
    return {
        "consumer_tag": consumer.tag,
        "channel": consumer.channel.name,
        "queue": consumer.queue.name,
        "vhost": consumer.channel.vhost.name,
        **_actor(consumer.channel),
    }


def _actor(channel: ChannelBase) -> dict[str, object]:
    """Return the header that names the channel's user, also where a timer closes the channel."""
    return {"user_who_performed_action": channel.connection.user}
