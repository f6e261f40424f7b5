"""/api/channels and /api/consumers: channels and consumers of connections."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fastapi import Response

from leveret.mgmt_ui.api import views
from leveret.mgmt_ui.api.callers import CallerHere
from leveret.mgmt_ui.api.connections import existing
from leveret.mgmt_ui.api.flows import flows_of_channel
from leveret.mgmt_ui.api.listing import (
    READ,
    ObjectKind,
    Query,
    QueryHere,
    Segment,
    answer,
    listed,
    select_columns,
    shown,
    vhosts_of,
)
from leveret.mgmt_ui.api.problems import not_found
from leveret.mgmt_ui.objects import open_channels, open_consumers
from leveret.mgmt_ui.routes import LazyRouter

if TYPE_CHECKING:
    from collections.abc import Iterable

    from leveret.core.clients import Client
    from leveret.mgmt_ui.api.callers import Caller
    from leveret.mgmt_ui.api.views import Row
    from leveret.mgmt_ui.objects import OpenChannel, OpenConsumer

__all__ = ["router"]

router = LazyRouter(tags=["channels"])


@router.api_route("/api/channels", methods=READ)
async def list_channels(caller: CallerHere, query: QueryHere) -> Response:
    """Channels of the connections that the caller may see."""
    return await _listed(caller, query, caller.visible_clients())


@router.api_route("/api/vhosts/{vhost}/channels", methods=READ)
async def list_channels_in_vhost(caller: CallerHere, query: QueryHere, vhost: Segment) -> Response:
    """Channels of connections to one virtual host."""
    caller.vhost(vhost)
    clients = [client for client in caller.visible_clients() if client.vhost.name == vhost]
    return await _listed(caller, query, clients)


@router.api_route("/api/connections/{name}/channels", methods=READ)
async def list_channels_of_connection(
    caller: CallerHere, query: QueryHere, name: Segment
) -> Response:
    """Channels of one connection."""
    return await _listed(caller, query, [await existing(caller, name)])


@router.api_route("/api/connections/{name}/sessions", methods=READ)
async def list_sessions_of_connection(caller: CallerHere, name: Segment) -> Response:
    """Sessions of AMQP 1.0: none, since only AMQP 0-9-1 is served."""
    await existing(caller, name)
    return answer([])


@router.api_route("/api/channels/{name}", methods=READ)
async def show_channel(caller: CallerHere, query: QueryHere, name: Segment) -> Response:
    """One channel, with its consumers."""
    client = await existing(caller, name.rpartition(" (")[0])
    for channel in client.channel_facts():
        row = _row((client, channel), caller, query)
        if row["name"] == name:
            row["consumer_details"] = [
                views.consumer_row(client, channel, consumer, caller.node.name)
                for consumer in channel.consumers
            ]
            if not query.disable_stats:
                row |= flows_of_channel(client, channel.number, shown(caller, query))
            return answer(select_columns(row, query.columns))
    raise not_found()


@router.api_route("/api/consumers", methods=READ)
@router.api_route("/api/consumers/{vhost}", methods=READ)
async def list_consumers(
    caller: CallerHere, query: QueryHere, vhost: Segment | None = None
) -> Response:
    """Consumers in one virtual host, or in all whose contents the caller may list."""
    names = {host.name for host in vhosts_of(caller, vhost)}
    clients = [client for client in caller.node.broker.connections if client.vhost.name in names]
    found = await open_consumers(clients)

    def row(item: OpenConsumer) -> Row:
        return views.consumer_row(*item, caller.node.name)

    kind: ObjectKind[OpenConsumer] = ObjectKind(
        lambda item: (item[0].vhost.name, item[2].queue, item[2].tag),
        row,
        ("vhost", "queue", "consumer_tag"),
    )
    return await listed(found, kind, query)


async def _listed(caller: Caller, query: QueryHere, clients: Iterable[Client]) -> Response:
    kind: ObjectKind[OpenChannel] = ObjectKind(
        lambda item: (f"{item[0].describe().endpoints} ({item[1].number:5})",),
        lambda item: _row(item, caller, query),
        ("name",),
    )
    return await listed(await open_channels(clients), kind, query)


def _row(item: OpenChannel, caller: Caller, query: Query) -> Row:
    wanted = None if query.disable_stats else shown(caller, query)
    return views.channel_row(*item, caller.node.name, wanted)
