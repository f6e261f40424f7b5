"""Operations on de-duplication windows and idempotent producers.

A window is a queue's or an exchange's; a key in it is given by the x-dedup-id or message-id of
messages.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol, cast

from leveret.core.admin.commands import command, query
from leveret.core.admin.node import AdminNode, changed, waited
from leveret.core.admin.rights import IN_VHOST, may
from leveret.core.definitions.administration import AdministrationError
from leveret.features.dedup.extension import windows_of
from leveret.features.dedup.keys import text_key
from leveret.ports.after_all import AfterAll

if TYPE_CHECKING:
    from collections.abc import Iterable

    from leveret.core.queues.declared_queue import DeclaredQueue
    from leveret.core.vhost import Vhost
    from leveret.features.dedup.interceptor import DedupInterceptor
    from leveret.features.dedup.window import DedupWindow
    from leveret.features.dedup.writer import DedupWriter


class DedupNode(AdminNode, Protocol):
    """Parts of a node that commands on de-duplication use."""

    @property
    def dedup(self) -> DedupInterceptor | None:
        """De-duplication of a running node, else None."""
        ...


@query("dedup.list", IN_VHOST)
async def dedup_list(node: DedupNode, *, vhost: str) -> list[dict[str, Any]]:
    """Return the windows: keys in memory, and duplicates dropped since the start."""
    return _rows(_writer(node, vhost), node.vhosts[vhost])


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
    writer, found = _writer(node, vhost), node.vhosts[vhost]
    row = _row_of(writer, found, queue, exchange)
    if id_ is None:
        return row
    window, key = _window(writer, found, row, id_)
    return {**row, "id": id_, "seen_at": None if window is None else window.seen_ms(key)}


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
    writer, found = _writer(node, vhost), node.vhosts[vhost]
    window, key = _window(writer, found, _row_of(writer, found, queue, exchange), id_)
    if window is None or not window.forget_key(key):
        raise AdministrationError("not_found", f"no message '{id_}' was seen there")
    await waited(lambda: window.is_saved)


@query("producers.list", IN_VHOST)
async def producers_list(node: DedupNode, *, vhost: str) -> list[dict[str, Any]]:
    """Return the last sequence number of each producer, and its time."""
    writer = _writer(node, vhost)
    return [
        {
            "id": producer.id,
            "user": producer.user or None,
            "epoch": known.position.epoch,
            "sequence": known.position.sequence,
            "last_at": known.time_ms,
        }
        for producer, known in ([] if writer is None else writer.producers.items())
    ]


@command("producers.forget")
async def producers_forget(
    node: DedupNode, *, vhost: str, id_: str, user: str | None = None
) -> None:
    """Delete a producer's state: it may start again with any epoch and sequence number 0."""
    writer, told = _writer(node, vhost), AfterAll(1)
    if writer is None or not writer.forget_producer(id_, user, told):
        raise AdministrationError("not_found", f"no producer '{id_}'")
    await changed(told)


def _writer(node: DedupNode, vhost: str) -> DedupWriter | None:
    """Return the log writer of a virtual host's exchanges and producers; None without any.

    Raises AdministrationError for an unknown virtual host, and where no node runs.
    """
    node.administration.vhost(vhost)
    if node.dedup is None:
        raise AdministrationError("invalid", "no node runs here: only a running one knows")
    return node.dedup.writers.get(vhost)


def _rows(writer: DedupWriter | None, vhost: Vhost) -> list[dict[str, Any]]:
    """Return all windows of a virtual host, with their owners and counts."""
    rows = [
        _row(
            "queue",
            queue.name,
            windows[0].window_ms,
            sum(window.key_count for window in windows),
            sum(window.duplicates for window in windows),
        )
        for queue in cast("Iterable[DeclaredQueue]", vhost.queues.values())
        if (windows := windows_of(queue))
    ]
    duplicates = {} if writer is None else writer.seen.duplicates
    keys = 0 if writer is None else writer.seen.window.key_count
    # All exchanges of a virtual host share one set of keys.
    return rows + [
        _row("exchange", name, exchange.dedup_window_ms, keys, duplicates.get(name, 0))
        for name, exchange in vhost.exchanges.items()
        if exchange.dedup_window_ms is not None
    ]


def _row(kind: str, name: str, window_ms: int, keys: int, duplicates: int) -> dict[str, Any]:
    return {
        "kind": kind,
        "name": name,
        "window_ms": window_ms,
        "keys": keys,
        "duplicates": duplicates,
    }


def _row_of(
    writer: DedupWriter | None, vhost: Vhost, queue: str | None, exchange: str | None
) -> dict[str, Any]:
    """Return the row of the window that is named. Raises AdministrationError."""
    if (queue is None) == (exchange is None):
        raise AdministrationError("invalid", "either a queue or an exchange is named")
    kind, name = ("exchange", exchange) if queue is None else ("queue", queue)
    for row in _rows(writer, vhost):
        if (row["kind"], row["name"]) == (kind, name):
            return row
    raise AdministrationError("not_found", f"no {kind} '{name}' with a window")


def _window(
    writer: DedupWriter | None, vhost: Vhost, row: dict[str, Any], id_: str
) -> tuple[DedupWindow | None, bytes]:
    """Return the window of a row, and the key of an id in it."""
    if row["kind"] == "queue":
        queue = cast("DeclaredQueue", vhost.queues[row["name"]])
        key = text_key(id_.encode())
        windows = windows_of(queue)
        return next((one for one in windows if one.seen_ms(key) is not None), windows[0]), key
    if writer is None:
        return None, b""
    return writer.seen.window, writer.seen.key_of(row["name"], id_)
