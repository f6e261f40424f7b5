"""Operations that list objects of a running node.

Lists come page by page in the order of their keys: `after` is the key of the last row seen. Sorted
by a column there is one page, the first. `total` is the number of rows on all pages. A node may
hold a hundred thousand queues while its one event loop serves clients: lists are processed in
slices, with a pass of the loop between.
"""

from __future__ import annotations

import asyncio
import heapq
from itertools import islice
from typing import TYPE_CHECKING, Any, Final, TypeAlias, TypedDict, Unpack

from leveret.core.admin.commands import query
from leveret.core.admin.node import queue_of, vhost_of
from leveret.core.definitions.administration import AdministrationError
from leveret.mgmt_ui.api import views
from leveret.mgmt_ui.api.views import Ranges, Shown
from leveret.mgmt_ui.cells import cell, rank
from leveret.mgmt_ui.operations.topology import broker_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from leveret.core.clients import Client
    from leveret.core.vhost import Vhost
    from leveret.mgmt_ui.operations.context import AdminContext

__all__ = ["object_totals"]

ROWS_MAX: Final = 5000  # of one answer; more need further requests
SLICE_ITEMS: Final = 100  # a fraction of a millisecond of the event loop

Row: TypeAlias = dict[str, Any]
Key: TypeAlias = tuple[str, ...]
Entry: TypeAlias = tuple[Key, Any]


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
    queues = (
        ((vhost.name, key), queue)
        for vhost in _vhosts(node, page["vhost"])
        for key, queue in list(vhost.queues.items())
        if _is_meant(key, name)
    )
    return await _page(queues, lambda queue: views.queue_row(queue, node_name), page)


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
    exchanges = (
        ((vhost.name, key), exchange)
        for vhost in _vhosts(node, page["vhost"])
        for key, exchange in list(vhost.exchanges.items())
        if _is_meant(key, name)
    )
    return await _page(exchanges, views.exchange_row, page)


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

    def entries() -> Iterator[Entry]:
        for vhost in _vhosts(node, page["vhost"]):
            for exchange in list(vhost.exchanges.values()):
                if source is not None and exchange.name != source:
                    continue
                for binding in list(exchange.outgoing.values()):
                    row = views.binding_row(binding)
                    if destination is None or row["destination"] == destination:
                        key = row["destination_type"], row["destination"], row["properties_key"]
                        yield (vhost.name, exchange.name, *key), row

    return await _page(entries(), lambda row: row, page)


# -- connections, channels, consumers


@query("connection.list")
async def connection_list(
    node: AdminContext, *, user: str | None = None, **page: Unpack[ListPage]
) -> Row:
    """Return connections."""
    broker = broker_of(node)
    clients = (
        ((client.vhost.name, str(client.describe().endpoints)), client)
        for client in _clients(node, page["vhost"], user)
    )
    return await _page(clients, lambda client: views.connection_row(client, broker.node_name), page)


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

    def entries() -> Iterator[Entry]:
        for client in _clients(node, page["vhost"], user):
            for channel in client.channel_facts():
                row = views.channel_row(client, channel, name)
                yield (row["vhost"], row["name"]), row

    return await _page(entries(), lambda row: row, page)


@query("consumer.list")
async def consumer_list(
    node: AdminContext, *, queue: str | None = None, **page: Unpack[ListPage]
) -> Row:
    """Return consumers, by their queues."""
    name = broker_of(node).node_name

    def entries() -> Iterator[Entry]:
        for client in _clients(node, page["vhost"]):
            for channel in client.channel_facts():
                for consumer in channel.consumers:
                    if queue in {None, consumer.queue}:
                        row = views.consumer_row(client, channel, consumer, name)
                        where = row["channel_details"]["name"]
                        yield (client.vhost.name, consumer.queue, where, consumer.tag), row

    return await _page(entries(), lambda row: row, page)


def _clients(node: AdminContext, vhost: str | None, user: str | None = None) -> Iterator[Client]:
    """Yield the connections of the given virtual host and user."""
    for client in list(broker_of(node).connections):
        if vhost in {None, client.vhost.name} and user in {None, client.user}:
            yield client


# -- what all lists have in common


def _vhosts(node: AdminContext, name: str | None) -> list[Vhost]:
    if name is not None:
        return [vhost_of(node, name)]
    return list(broker_of(node).vhosts.values())


def _is_meant(name: str, part: str | None) -> bool:
    return part is None or part.lower() in name.lower()


async def _page(entries: Iterable[Entry], row_of: Callable[[Any], Row], page: ListPage) -> Row:
    limit = min(max(page["limit"], 1), ROWS_MAX)
    column, after = page["sort"], _key(page["after"])
    if column is not None and after is not None:
        raise AdministrationError("invalid", "a list that is sorted by a column has one page")
    counted = _Counted(entries)
    if column is not None:
        rows = await _ranked(counted, row_of, column, limit, reverse=page["reverse"])
        return {"rows": rows, "after": None, "total": counted.count}
    later = counted if after is None else (entry for entry in counted if entry[0] > after)
    found = await _first(later, limit + 1, lambda entry: entry[0])
    more, found = len(found) > limit, found[:limit]
    return {
        "rows": [row_of(item) for _, item in found],
        "after": list(found[-1][0]) if more else None,
        "total": counted.count,
    }


class _Counted:
    """Iterator of entries that counts them."""

    def __init__(self, entries: Iterable[Entry]) -> None:
        self._entries = entries
        self.count = 0

    def __iter__(self) -> Iterator[Entry]:
        for entry in self._entries:
            self.count += 1
            yield entry


async def _ranked(
    entries: Iterable[Entry],
    row_of: Callable[[Any], Row],
    column: str,
    limit: int,
    *,
    reverse: bool,
) -> list[Row]:
    """Return the first rows by a column; of equal ones, those with the lower keys."""
    ranked = ((key, row_of(item)) for key, item in entries)
    found = await _first(
        ranked, limit, lambda entry: rank(cell(entry[1], column), reverse=reverse), reverse=reverse
    )
    return [row for _, row in found]


async def _first(
    entries: Iterable[Entry],
    count: int,
    key: Callable[[Entry], Any],
    *,
    reverse: bool = False,
) -> list[Entry]:
    """Return the `count` first entries by a key, or the last ones."""
    best = heapq.nlargest if reverse else heapq.nsmallest
    iterator = iter(entries)
    found: list[Entry] = []
    while part := list(islice(iterator, SLICE_ITEMS)):
        found = best(count, [*found, *part], key=key)
        await asyncio.sleep(0)
    return found


def _key(value: object) -> Key | None:
    if value is None:
        return None
    if isinstance(value, list) and all(isinstance(part, str) for part in value):
        return tuple(value)
    raise AdministrationError("invalid", "bad parameter 'after'")


async def object_totals(node: AdminContext) -> Row:
    """Return the number of objects of each kind on the node, and its message counts."""
    broker = broker_of(node)
    totals = dict.fromkeys(("messages", "messages_ready", "messages_unacknowledged"), 0)
    consumers = 0
    queues = iter([queue for vhost in broker.vhosts.values() for queue in vhost.queues.values()])
    while part := list(islice(queues, SLICE_ITEMS)):
        for queue in part:
            consumers += queue.consumer_count
            for name, count in views.queue_counts(queue).items():
                totals[name] += count
        await asyncio.sleep(0)
    return {
        "vhosts": len(broker.vhosts),
        "exchanges": sum(len(vhost.exchanges) for vhost in broker.vhosts.values()),
        "queues": sum(len(vhost.queues) for vhost in broker.vhosts.values()),
        "connections": len(broker.connections),
        "channels": sum(client.channel_count for client in broker.connections),
        "consumers": consumers,
        **totals,
    }
