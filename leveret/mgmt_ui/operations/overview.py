"""`node.overview`: current rates of a node, measured during the request.

The counters of queues and clients are read twice, with the window between, so that no samples need
to be kept for a screen that is used now and then. See `leveret top`.
"""

from __future__ import annotations

import asyncio
from operator import itemgetter
from typing import TYPE_CHECKING, Any, Final

from leveret.core.definitions.administration import AdministrationError
from leveret.core.queues.declared_queue import DeclaredQueue
from leveret.mgmt_ui.api import views
from leveret.mgmt_ui.yielding import in_yielding_chunks, sorted_by
from leveret.ports.usage import Usage

if TYPE_CHECKING:
    from collections.abc import Sequence

    from leveret.broker.broker import Broker
    from leveret.core.telemetry.usage import Metered

__all__ = ["SORTS", "measure", "quantile"]

WINDOW_MS_MAX: Final = 60_000
ROWS_MAX: Final = 1000

# Sort columns of queues, highest first; names in ascending order.
SORTS: Final = {
    "in": "in_rate",
    "out": "out_rate",
    "ready": "messages_ready",
    "unacked": "messages_unacknowledged",
    "name": "name",
}


async def measure(broker: Broker, window_ms: int, limit: int, sort: str) -> dict[str, Any]:
    """Return rates of the node and of the first queues by `sort`. Raises AdministrationError."""
    if not 1 <= window_ms <= WINDOW_MS_MAX:
        raise AdministrationError("invalid", f"a window has 1 to {WINDOW_MS_MAX} milliseconds")
    if sort not in SORTS:
        raise AdministrationError("invalid", f"queues are sorted by one of {', '.join(SORTS)}")
    loop = asyncio.get_running_loop()
    statistics = broker.statistics
    before, waited = await _used(broker), statistics.latency.counts
    begun = loop.time()
    await asyncio.sleep(window_ms / 1000)
    seconds = loop.time() - begun
    clients = Usage()
    rows = []
    async for part in in_yielding_chunks((await _used(broker)).items()):
        for who, used in part:
            moved = used.since(before.get(who, Usage()))
            if isinstance(who, DeclaredQueue):
                rows.append(_row(who, moved, seconds))
            else:
                clients = clients.plus(moved)
    waits = [now - then for now, then in zip(statistics.latency.counts, waited, strict=True)]
    ordered = await sorted_by(rows, itemgetter(SORTS[sort]), reverse=sort != "name")
    return {
        "window_ms": round(seconds * 1000),
        "lag_ms": round(seconds * 1000 - window_ms, 1),  # by which the loop came back too late
        "rates": _rates(clients, seconds),
        # For messages that were delivered for the first time in the window.
        "latency_ms": {
            name: quantile(statistics.latency.bounds, waits, part)
            for name, part in (("p50", 0.5), ("p99", 0.99))
        },
        "queues_shown": ordered[: min(max(limit, 0), ROWS_MAX)],
    }


def quantile(bounds: Sequence[int], counts: Sequence[int], part: float) -> int | None:
    """Return the bucket bound of a quantile; None if nothing was counted, or beyond all bounds."""
    wanted = part * sum(counts)
    seen = 0
    for bound, count in zip(bounds, counts, strict=False):
        seen += count
        if seen and seen >= wanted:
            return bound
    return None


async def _used(broker: Broker) -> dict[Metered, Usage]:
    """Return the total usage of each client and queue so far."""
    return {
        who: who.total_usage()
        async for part in in_yielding_chunks(list(broker.metered()))
        for who in part
    }


def _row(queue: DeclaredQueue, moved: Usage, seconds: float) -> dict[str, Any]:
    definition = queue.definition
    rates = _rates(moved, seconds)
    return {
        "vhost": definition.vhost,
        "name": definition.name,
        **views.queue_counts(queue),
        "consumers": queue.consumer_count,
        "in_rate": rates["messages_in"],
        "out_rate": rates["messages_out"],
    }


def _rates(moved: Usage, seconds: float) -> dict[str, float]:
    """Return messages and bytes per second."""
    return {name: round(value / seconds, 1) for name, value in moved._asdict().items()}
