"""Pages of connections and channels: lists, details, and closing with a reason."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from fastapi import Request, Response

from leveret.mgmt_ui.api.connections import existing
from leveret.mgmt_ui.api.listing import ObjectKind, Segment
from leveret.mgmt_ui.api.problems import ApiError, not_found
from leveret.mgmt_ui.operations.topology import connection_close
from leveret.mgmt_ui.pages import clients
from leveret.mgmt_ui.pages.charts import PERIODS
from leveret.mgmt_ui.pages.formats import path
from leveret.mgmt_ui.pages.forms import FormHere, act
from leveret.mgmt_ui.pages.histories import FLOW, chart_of_rates, latest_rates
from leveret.mgmt_ui.pages.live import Frame, live_stream
from leveret.mgmt_ui.pages.rendering import page
from leveret.mgmt_ui.pages.tables import Column, list_rows, query_filters
from leveret.mgmt_ui.pages.viewing import ViewerHere
from leveret.mgmt_ui.routes import LazyRouter
from leveret.mgmt_ui.yielding import picked

if TYPE_CHECKING:
    from leveret.core.clients import Client
    from leveret.mgmt_ui.pages.viewing import Viewer

__all__ = ["router"]

router = LazyRouter()

COLUMNS = (
    Column("Name", "name"),
    Column("Virtual host", "vhost", minor=True),
    Column("User", "user"),
    Column("State", "state", minor=True),
    Column("Client", "client"),
    Column("Channels", "channels", numeric=True, minor=True),
    Column("In", "receive_rate", numeric=True),
    Column("Out", "send_rate", numeric=True),
    Column("Published", "publish_rate", numeric=True),
    Column("Delivered", "deliver_rate", numeric=True),
    Column("Connected", "connected_at", numeric=True),
)
CHANNEL_COLUMNS = (
    Column("Channel", "name"),
    Column("Virtual host", "vhost", minor=True),
    Column("User", "user"),
    Column("State", "state", minor=True),
    Column("Mode", "mode", minor=True),
    Column("Consumers", "consumers", numeric=True),
    Column("Prefetch", "prefetch", numeric=True),
    Column("Unacknowledged", "unacknowledged", numeric=True),
    Column("Published", "publish_rate", numeric=True),
    Column("Delivered", "deliver_rate", numeric=True),
    Column("Acked", "ack_rate", numeric=True),
)


@router.get("/connections")
async def list_connections(request: Request, viewer: ViewerHere) -> Response:
    """Show all connections to monitors, else the user's own."""
    filters = query_filters(request, "vhost", "user")
    found = await picked(
        viewer.caller.visible_clients(),
        lambda client: (
            filters["vhost"] in {"", client.vhost.name} and filters["user"] in {"", client.user}
        ),
    )
    kind: ObjectKind[Client] = ObjectKind(
        lambda client: (str(client.describe().endpoints),),
        partial(
            clients.connection_row,
            node_name=viewer.node.name,
            statistics=viewer.broker.statistics,
        ),
        ("name",),
    )
    listing = await list_rows(request, found, kind, COLUMNS, filters)
    vhosts = [vhost.name for vhost in viewer.caller.visible_vhosts()]
    return page(
        request,
        viewer,
        "connections.html.j2",
        listing=listing,
        vhosts=vhosts,
        now_ms=viewer.now_ms,
    )


@router.get("/channels")
async def list_channels(request: Request, viewer: ViewerHere) -> Response:
    """Show the channels of the connections that the user may see."""
    filters = query_filters(request, "vhost")
    channels = list(clients.channels_of(viewer.caller.visible_clients()))
    found = await picked(
        channels, lambda channel: filters["vhost"] in {"", channel.connection.vhost.name}
    )
    row = partial(clients.channel_row, statistics=viewer.broker.statistics)
    kind: ObjectKind[Any] = ObjectKind(lambda channel: (channel.name,), row, ("name",))
    listing = await list_rows(request, found, kind, CHANNEL_COLUMNS, filters)
    vhosts = [vhost.name for vhost in viewer.caller.visible_vhosts()]
    return page(request, viewer, "channels.html.j2", listing=listing, vhosts=vhosts)


@router.get("/connections/{name}")
async def show_connection(request: Request, viewer: ViewerHere, name: Segment) -> Response:
    """Show one connection, its channels, and its client properties."""
    client: Any = await _existing(viewer, name)
    channels = list(clients.channels_of([client]))
    return page(
        request,
        viewer,
        "connection.html.j2",
        connection=clients.connection_row(client, viewer.node.name, viewer.broker.statistics),
        may_close=viewer.caller.may_close(client),
        channels=[clients.channel_row(each, viewer.broker.statistics) for each in channels],
        consumers=[clients.consumer_row(each) for each in clients.consumers_of(channels)],
        now_ms=viewer.now_ms,
    )


@router.get("/connections/{name}/channels/{number}")
async def show_channel(
    request: Request, viewer: ViewerHere, name: Segment, number: Segment
) -> Response:
    """Show one channel: its rates of publishes, deliveries and acks, and its consumers."""
    channel = await _channel(viewer, name, number)
    statistics = viewer.broker.statistics
    return page(
        request,
        viewer,
        "channel.html.j2",
        channel=clients.channel_row(channel, statistics),
        chart=chart_of_rates(statistics, channel.slot, FLOW, PERIODS[0]),
        consumers=[clients.consumer_row(each) for each in clients.consumers_of([channel])],
    )


@router.get("/live/connections/{name}/channels/{number}")
async def live_channel(
    request: Request, viewer: ViewerHere, name: Segment, number: Segment
) -> Response:
    """Stream points of the channel's chart; the stream ends with the channel."""
    await _channel(viewer, name, number)

    async def frame() -> Frame:
        channel = await _channel(viewer, name, number)
        rates = latest_rates(viewer.broker.statistics, channel.slot, FLOW)
        return {"figures": {}, "points": {"rates": rates}}

    return live_stream(request, viewer, frame)


async def _channel(viewer: Viewer, name: str, number: str) -> Any:
    """Return a channel that the user may see. Raises ApiError 404."""
    client: Any = await _existing(viewer, name)
    for channel in clients.channels_of([client]):
        if str(channel.number) == number:
            return channel
    raise not_found("channel_not_found")


@router.post("/connections/{name}/close")
async def close_connection(viewer: ViewerHere, form: FormHere, name: Segment) -> Response:
    """Close a connection; its client gets the reason."""
    viewer.caller.require_to_close(await _existing(viewer, name))
    return await act(
        viewer,
        connection_close,
        name=name,
        reason=form.word("reason") or None,
        done=f"Connection {name} was closed.",
        then="/connections",
        otherwise=path("connections", name),
    )


async def _existing(viewer: Viewer, name: str) -> Client:
    """Return a connection that the user may see. Raises ApiError 404."""
    try:
        return await existing(viewer.caller, name)
    except ApiError:
        raise not_found("connection_not_found") from None
