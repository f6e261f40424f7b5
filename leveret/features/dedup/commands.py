"""Operations on de-duplication windows and idempotent producers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from leveret.core.admin.commands import command, query
from leveret.core.admin.node import AdminNode, changed, waited
from leveret.core.admin.rights import IN_VHOST, may
from leveret.core.definitions.administration import AdministrationError

if TYPE_CHECKING:
    from leveret.core.vhost import Vhost
    from leveret.features.dedup.operations import DedupOperations


class DedupNode(AdminNode, Protocol):
    """Parts of a node that commands on de-duplication use."""

    @property
    def dedup(self) -> DedupOperations | None:
        """De-duplication of a running node, else None."""
        ...


@query("dedup.list", IN_VHOST)
async def dedup_list(node: DedupNode, *, vhost: str) -> list[dict[str, Any]]:
    """Return the windows: keys in memory, and duplicates dropped since the start."""
    once, found = _opened(node, vhost)
    return once.windows(found)


@query("dedup.show", IN_VHOST)
async def dedup_show(
    node: DedupNode,
    *,
    vhost: str,
    queue: str | None = None,
    exchange: str | None = None,
    id_: str | None = None,
) -> dict[str, Any]:
    """Return one window; with an id, when that message was stored."""
    once, found = _opened(node, vhost)
    row = _window(once, found, queue, exchange)
    if id_ is None:
        return row
    return {**row, "id": id_, "seen_at": once.seen_ms(found, *_named(queue, exchange), id_)}


@command("dedup.forget", may("configure", queue="queue", exchange="exchange"))
async def dedup_forget(
    node: DedupNode,
    *,
    vhost: str,
    queue: str | None = None,
    exchange: str | None = None,
    id_: str,
) -> None:
    """Remove an id from the window: a message with it is stored again."""
    once, found = _opened(node, vhost)
    _window(once, found, queue, exchange)
    window = once.forget(found, *_named(queue, exchange), id_)
    if window is None:
        raise AdministrationError("not_found", f"no message '{id_}' was seen there")
    await waited(lambda: window.is_saved)


@query("producers.list", IN_VHOST)
async def producers_list(node: DedupNode, *, vhost: str) -> list[dict[str, Any]]:
    """Return the last sequence number of each producer, and its time."""
    once, found = _opened(node, vhost)
    return once.producers(found)


@command("producers.forget")
async def producers_forget(
    node: DedupNode, *, vhost: str, id_: str, user: str | None = None
) -> None:
    """Delete a producer's state: it may start again with any epoch and sequence number 0."""
    once, found = _opened(node, vhost)
    told = once.forget_producer(found, id_, user)
    if told is None:
        raise AdministrationError("not_found", f"no producer '{id_}'")
    await changed(told)


def _opened(node: DedupNode, vhost: str) -> tuple[DedupOperations, Vhost]:
    """Return the de-duplication operations and the virtual host. Raises AdministrationError."""
    node.administration.vhost(vhost)
    if node.dedup is None:
        raise AdministrationError("invalid", "no node runs here: only a running one knows")
    return node.dedup, node.vhosts[vhost]


def _named(queue: str | None, exchange: str | None) -> tuple[str, str]:
    """Return kind and name of the window's queue or exchange."""
    match queue, exchange:
        case str(), None:
            return "queue", queue
        case None, str():
            return "exchange", exchange
    raise AdministrationError("invalid", "either a queue or an exchange is named")


def _window(
    once: DedupOperations, vhost: Vhost, queue: str | None, exchange: str | None
) -> dict[str, Any]:
    kind, name = _named(queue, exchange)
    for row in once.windows(vhost):
        if (row["kind"], row["name"]) == (kind, name):
            return row
    raise AdministrationError("not_found", f"no {kind} '{name}' with a window")
