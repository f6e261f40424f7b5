"""Operations on de-duplication windows, idempotent producers and prepared messages."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from leveret.core.definitions.administration import AdministrationError
from leveret.mgmt_ui.operations.commands import command, query

if TYPE_CHECKING:
    from collections.abc import Callable

    from leveret.core.vhost import Vhost
    from leveret.features.dedup.operations import DedupOperations
    from leveret.mgmt_ui.operations.context import AdminContext
    from leveret.ports.after_all import AfterAll

POLL_SECONDS = 0.01
SAFE_SECONDS_MAX = 30  # until what was asked for is on the disk


@query("dedup.list")
async def dedup_list(node: AdminContext, *, vhost: str) -> list[dict[str, Any]]:
    """Return the windows: keys in memory, and duplicates dropped since the start."""
    once, found = _opened(node, vhost)
    return once.windows(found)


@query("dedup.show")
async def dedup_show(
    node: AdminContext,
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


@command("dedup.forget")
async def dedup_forget(
    node: AdminContext,
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
    await _until(lambda: window.is_saved)


@query("producers.list")
async def producers_list(node: AdminContext, *, vhost: str) -> list[dict[str, Any]]:
    """Return the last sequence number of each producer, and its time."""
    once, found = _opened(node, vhost)
    return once.producers(found)


@command("producers.forget")
async def producers_forget(
    node: AdminContext, *, vhost: str, id_: str, user: str | None = None
) -> None:
    """Delete a producer's state: it may start again with any epoch and sequence number 0."""
    once, found = _opened(node, vhost)
    await _safe(once.forget_producer(found, id_, user), f"no producer '{id_}'")


@query("prepared.list")
async def prepared_list(node: AdminContext, *, vhost: str) -> list[dict[str, Any]]:
    """Return prepared messages, the oldest first."""
    once, found = _opened(node, vhost)
    return once.prepared(found)


@query("prepared.show")
async def prepared_show(node: AdminContext, *, vhost: str, id_: str) -> dict[str, Any]:
    """Return one prepared message."""
    once, found = _opened(node, vhost)
    for row in once.prepared(found):
        if row["id"] == id_:
            return row
    raise AdministrationError("not_found", f"no prepared message '{id_}'")


@command("prepared.commit")
async def prepared_commit(node: AdminContext, *, vhost: str, id_: str) -> None:
    """Commit a prepared message: it is routed to its queues."""
    await _decide(node, vhost, id_, commit=True)


@command("prepared.rollback")
async def prepared_rollback(node: AdminContext, *, vhost: str, id_: str) -> None:
    """Roll back a prepared message: it is deleted."""
    await _decide(node, vhost, id_, commit=False)


async def _decide(node: AdminContext, vhost: str, id_: str, *, commit: bool) -> None:
    once, found = _opened(node, vhost)
    told = once.decide(found, id_, commit=commit)
    await _safe(told, f"no prepared message '{id_}'")


def _opened(node: AdminContext, vhost: str) -> tuple[DedupOperations, Vhost]:
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


async def _safe(told: AfterAll | None, unknown: str) -> None:
    """Wait until a change is durable."""
    if told is None:
        raise AdministrationError("not_found", unknown)
    await _until(lambda: not told.pending)
    if told.failed:
        raise AdministrationError("invalid", "it could not be stored: see the node's log")


async def _until(is_so: Callable[[], bool]) -> None:
    try:
        async with asyncio.timeout(SAFE_SECONDS_MAX):
            while not is_so():  # noqa: ASYNC110  # core has no events to wait for
                await asyncio.sleep(POLL_SECONDS)
    except TimeoutError:
        raise AdministrationError("invalid", "it takes too long: see the node's log") from None
