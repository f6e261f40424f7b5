"""Operations on de-duplication windows, idempotent producers and prepared messages."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from leveret.core.definitions.administration import AdministrationError

if TYPE_CHECKING:
    from collections.abc import Callable

    from leveret.core.vhost import Vhost
    from leveret.features.dedup.operations import DedupOperations
    from leveret.mgmt_ui.operations.context import AdminContext, Operations, Parameters
    from leveret.ports.callbacks import AfterAll

__all__ = ["ONCE"]

POLL_SECONDS = 0.01
SAFE_SECONDS_MAX = 30  # until what was asked for is on the disk


async def _dedup_list(node: AdminContext, parameters: Parameters) -> list[dict[str, object]]:
    once, vhost = _opened(node, parameters)
    return once.windows(vhost)


async def _dedup_show(node: AdminContext, parameters: Parameters) -> dict[str, object]:
    once, vhost = _opened(node, parameters)
    row = _window(once, vhost, parameters)
    id_ = parameters["id"]
    if id_ is None:
        return row
    return {**row, "id": id_, "seen_at": once.seen_ms(vhost, *_named(parameters), id_)}


async def _dedup_forget(node: AdminContext, parameters: Parameters) -> None:
    once, vhost = _opened(node, parameters)
    _window(once, vhost, parameters)
    window = once.forget(vhost, *_named(parameters), parameters["id"])
    if window is None:
        raise AdministrationError("not_found", f"no message '{parameters['id']}' was seen there")
    await _until(lambda: window.is_saved)


async def _producers_list(node: AdminContext, parameters: Parameters) -> list[dict[str, object]]:
    once, vhost = _opened(node, parameters)
    return once.producers(vhost)


async def _producers_forget(node: AdminContext, parameters: Parameters) -> None:
    once, vhost = _opened(node, parameters)
    id_, user = parameters["id"], parameters["user"]
    await _safe(once.forget_producer(vhost, id_, user), f"no producer '{id_}'")


async def _prepared_list(node: AdminContext, parameters: Parameters) -> list[dict[str, object]]:
    once, vhost = _opened(node, parameters)
    return once.prepared(vhost)


async def _prepared_show(node: AdminContext, parameters: Parameters) -> dict[str, object]:
    once, vhost = _opened(node, parameters)
    for row in once.prepared(vhost):
        if row["id"] == parameters["id"]:
            return row
    raise AdministrationError("not_found", f"no prepared message '{parameters['id']}'")


async def _prepared_commit(node: AdminContext, parameters: Parameters) -> None:
    await _decide(node, parameters, commit=True)


async def _prepared_rollback(node: AdminContext, parameters: Parameters) -> None:
    await _decide(node, parameters, commit=False)


async def _decide(node: AdminContext, parameters: Parameters, *, commit: bool) -> None:
    once, vhost = _opened(node, parameters)
    told = once.decide(vhost, parameters["id"], commit=commit)
    await _safe(told, f"no prepared message '{parameters['id']}'")


def _opened(node: AdminContext, parameters: Parameters) -> tuple[DedupOperations, Vhost]:
    """Return the de-duplication operations and the virtual host. Raises AdministrationError."""
    node.administration.vhost(parameters["vhost"])
    if node.dedup is None:
        raise AdministrationError("invalid", "no node runs here: only a running one knows")
    return node.dedup, node.vhosts[parameters["vhost"]]


def _named(parameters: Parameters) -> tuple[str, str]:
    """Return kind and name of the window's queue or exchange."""
    queue, exchange = parameters["queue"], parameters["exchange"]
    if (queue is None) == (exchange is None):
        raise AdministrationError("invalid", "either a queue or an exchange is named")
    return ("exchange", exchange) if queue is None else ("queue", queue)


def _window(once: DedupOperations, vhost: Vhost, parameters: Parameters) -> dict[str, object]:
    kind, name = _named(parameters)
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


_VHOST: Final = {"vhost": str}
_BY_ID: Final = {"vhost": str, "id": str}
_WINDOW: Final = {"vhost": str, "queue": None, "exchange": None}
ONCE: Final[Operations] = {
    "dedup.list": (_dedup_list, _VHOST),
    "dedup.show": (_dedup_show, {**_WINDOW, "id": None}),
    "dedup.forget": (_dedup_forget, {**_WINDOW, "id": str}),
    "producers.list": (_producers_list, _VHOST),
    "producers.forget": (_producers_forget, {**_BY_ID, "user": None}),
    "prepared.list": (_prepared_list, _VHOST),
    "prepared.show": (_prepared_show, _BY_ID),
    "prepared.commit": (_prepared_commit, _BY_ID),
    "prepared.rollback": (_prepared_rollback, _BY_ID),
}
