"""Operations that list objects of a running node.

Lists come page by page in the order of their keys: `after` is the key of the last row seen. Sorted
by a column there is one page, the first. `total` is the number of rows on all pages. They are
processed in slices (leveret.mgmt_ui.yielding).
"""

from __future__ import annotations

from itertools import chain
from typing import TYPE_CHECKING, Any, Final, TypeAlias, TypedDict, TypeVar, Unpack

from leveret.core.admin.commands import query
from leveret.core.admin.node import queue_of, vhost_of
from leveret.core.admin.shown import no_cursor
from leveret.core.definitions.administration import AdministrationError
from leveret.mgmt_ui.api import views
from leveret.mgmt_ui.api.views import Ranges, Shown
from leveret.mgmt_ui.cells import cell, rank
from leveret.mgmt_ui.objects import (
    message_counts,
    object_counts,
    open_channels,
    open_consumers,
    queues_of,
)
from leveret.mgmt_ui.operations.topology import broker_of
from leveret.mgmt_ui.yielding import made, picked, sorted_by

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from leveret.core.clients import Client
    from leveret.core.routing.bindings import Binding, QueueLike
    from leveret.core.routing.exchange import Exchange
    from leveret.core.vhost import Vhost
    from leveret.mgmt_ui.objects import OpenChannel, OpenConsumer
    from leveret.mgmt_ui.operations.context import AdminContext

__all__ = ["object_totals"]

ROWS_MAX: Final = 5000  # of one answer; more need further requests

T = TypeVar("T")
N = TypeVar("N", bound="QueueLike | Exchange")
Row: TypeAlias = dict[str, Any]
Key: TypeAlias = tuple[str, ...]


class ListPage(TypedDict):
    """Parameters of all lists."""

    vhost: str | None
    sort: str | None
    reverse: bool
    limit: int
    after: Any


# -- queues


@query("queue.list")
async def queue_list(
    node: AdminContext, *, name: str | None = None, **page: Unpack[ListPage]
) -> Row:
    """Return queues with their messages and consumers."""
    node_name = broker_of(node).node_name
    queues = await _named(queues_of(_vhosts(node, page["vhost"])), name)
    return await _page(queues, _key_of, lambda queue: views.queue_row(queue, node_name), page)


@query("queue.show")
async def queue_show(node: AdminContext, *, vhost: str, name: str) -> Row:
    """Return one queue with its statistics."""
    broker = broker_of(node)
    figures = Shown(broker.statistics, Ranges())
    return views.queue_row(queue_of(node, vhost, name), broker.node_name, figures)


# -- exchanges and bindings


@query("exchange.list")
async def exchange_list(
    node: AdminContext, *, name: str | None = None, **page: Unpack[ListPage]
) -> Row:
    """Return exchanges, the predeclared ones included."""
    exchanges = await _named(_exchanges(node, page["vhost"]), name)
    return await _page(exchanges, _key_of, views.exchange_row, page)


@query("exchange.show")
async def exchange_show(node: AdminContext, *, vhost: str, name: str) -> Row:
    """Return one exchange."""
    exchange = vhost_of(node, vhost).exchanges.get(name)
    if exchange is None:
        raise AdministrationError("not_found", f"no exchange '{name}' in vhost '{vhost}'")
    return views.exchange_row(exchange)


@query("binding.list")
async def binding_list(
    node: AdminContext,
    *,
    source: str | None = None,
    destination: str | None = None,
    **page: Unpack[ListPage],
) -> Row:
    """Return bindings; those of the default exchange, whose name is empty, included."""
    sources = [
        exchange for exchange in _exchanges(node, page["vhost"]) if source in {None, exchange.name}
    ]
    bindings = list(chain.from_iterable(exchange.outgoing.values() for exchange in sources))
    if destination is not None:
        bindings = await picked(bindings, lambda one: one.definition.destination == destination)
    return await _page(bindings, _key_of_binding, views.binding_row, page)


def _key_of_binding(binding: Binding) -> Key:
    held = binding.definition
    properties = views.properties_key(held.routing_key, held.arguments)
    return held.vhost, held.source, held.destination_type, held.destination, properties


# -- connections, channels, consumers


@query("connection.list")
async def connection_list(
    node: AdminContext, *, user: str | None = None, **page: Unpack[ListPage]
) -> Row:
    """Return connections."""
    name = broker_of(node).node_name
    return await _page(
        _clients(node, page["vhost"], user),
        lambda client: (client.vhost.name, str(client.describe().endpoints)),
        lambda client: views.connection_row(client, name),
        page,
    )


@query("connection.show")
async def connection_show(node: AdminContext, *, name: str) -> Row:
    """Return one connection."""
    broker = broker_of(node)
    for client in broker.connections:
        if str(client.describe().endpoints) == name:
            return views.connection_row(client, broker.node_name)
    raise AdministrationError("not_found", f"no connection '{name}'")


@query("channel.list")
async def channel_list(
    node: AdminContext, *, user: str | None = None, **page: Unpack[ListPage]
) -> Row:
    """Return channels with their unacknowledged and unconfirmed messages."""
    name = broker_of(node).node_name

    def key(item: OpenChannel) -> Key:
        client, channel = item
        return client.vhost.name, f"{client.describe().endpoints} ({channel.number})"

    found = await open_channels(_clients(node, page["vhost"], user))
    return await _page(found, key, lambda item: views.channel_row(*item, name), page)


@query("consumer.list")
async def consumer_list(
    node: AdminContext, *, queue: str | None = None, **page: Unpack[ListPage]
) -> Row:
    """Return consumers, by their queues."""
    name = broker_of(node).node_name

    def key(item: OpenConsumer) -> Key:
        client, channel, consumer = item
        where = f"{client.describe().endpoints} ({channel.number})"
        return client.vhost.name, consumer.queue, where, consumer.tag

    found = await open_consumers(_clients(node, page["vhost"]))
    found = [item for item in found if queue in {None, item[2].queue}]
    return await _page(found, key, lambda item: views.consumer_row(*item, name), page)


def _clients(node: AdminContext, vhost: str | None, user: str | None = None) -> list[Client]:
    """Return the connections of the given virtual host and user."""
    return [
        client
        for client in broker_of(node).connections
        if vhost in {None, client.vhost.name} and user in {None, client.user}
    ]


# -- what all lists have in common


def _vhosts(node: AdminContext, name: str | None) -> list[Vhost]:
    if name is not None:
        return [vhost_of(node, name)]
    return list(broker_of(node).vhosts.values())


def _exchanges(node: AdminContext, vhost: str | None) -> list[Exchange]:
    found = (host.exchanges.values() for host in _vhosts(node, vhost))
    return list(chain.from_iterable(found))


def _key_of(item: QueueLike | Exchange) -> Key:
    return item.definition.vhost, item.definition.name


async def _named(items: list[N], part: str | None) -> list[N]:
    """Return the queues or exchanges with `part` in their names, in any case."""
    if part is None:
        return items
    wanted = part.lower()
    return await picked(items, lambda item: wanted in _key_of(item)[1].lower())


async def _page(
    items: Collection[T], key: Callable[[T], Key], row_of: Callable[[T], Row], page: ListPage
) -> Row:
    limit = min(max(page["limit"], 1), ROWS_MAX)
    column, after, reverse = page["sort"], _after(page["after"]), page["reverse"]
    if column is not None and after is not None:
        raise AdministrationError("invalid", "a list that is sorted by a column has one page")
    later = items if after is None else await picked(items, lambda item: key(item) > after)
    ordered = await sorted_by(later, key)
    is_last = len(ordered) <= limit
    if column is not None:  # of equal rows, those with the lower keys come first
        ordered = await sorted_by(
            ordered, lambda item: rank(cell(row_of(item), column), reverse=reverse), reverse=reverse
        )
        is_last = True
    shown = ordered[:limit]
    return {
        "rows": await made(shown, row_of),
        "after": None if is_last else list(key(shown[-1])),
        "total": len(items),
    }


def _after(value: object) -> Key | None:
    if value is None:
        return None
    if isinstance(value, list) and all(isinstance(part, str) for part in value):
        return tuple(value)
    raise no_cursor()


async def object_totals(node: AdminContext) -> dict[str, int]:
    """Return the number of objects of each kind on the node, and its message counts."""
    broker = broker_of(node)
    vhosts, clients = list(broker.vhosts.values()), list(broker.connections)
    return {
        "vhosts": len(vhosts),
        **await object_counts(vhosts, clients),
        **await message_counts(vhosts),
    }
