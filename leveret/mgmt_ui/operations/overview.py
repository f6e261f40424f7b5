"""`node.overview`: current rates of a node, measured during the request.

The counters of queues and clients are read twice, with the window between, so that no samples need
to be kept for a screen that is used now and then. See `leveret top`.
"""

from __future__ import annotations

import asyncio
import heapq
from itertools import islice
from operator import itemgetter
from typing import TYPE_CHECKING, Any, Final, TypeVar

from leveret.core.definitions.administration import AdministrationError
from leveret.core.queues.open_queue import OpenQueue
from leveret.mgmt_ui.api import views
from leveret.ports.usage import Usage

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from leveret.broker.broker import Broker
    from leveret.core.telemetry.usage import Metered

__all__ = ["SORTS", "measure", "quantile"]

T = TypeVar("T")

WINDOW_MS_MAX: Final = 60_000
ROWS_MAX: Final = 1000
SLICE_ITEMS: Final = 100  # a fraction of a millisecond of the event loop

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
    moved = {
        who: usage.since(before.get(who, Usage())) for who, usage in (await _used(broker)).items()
    }
    clients = Usage()
    rows = []
    for part in _slices(moved.items()):
        for who, usage in part:
            if isinstance(who, OpenQueue):
                rows.append(_row(who, usage, seconds))
            else:
                clients = clients.plus(usage)
        await asyncio.sleep(0)
    waits = [now - then for now, then in zip(statistics.latency.counts, waited, strict=True)]
    first = heapq.nsmallest if sort == "name" else heapq.nlargest
    return {
        "window_ms": round(seconds * 1000),
        "lag_ms": round(seconds * 1000 - window_ms, 1),  # by which the loop came back too late
        "rates": _rates(clients, seconds),
        # For messages that were delivered for the first time in the window.
        "latency_ms": {
            name: quantile(statistics.latency.bounds, waits, part)
            for name, part in (("p50", 0.5), ("p99", 0.99))
        },
        "queues_shown": first(min(max(limit, 0), ROWS_MAX), rows, key=itemgetter(SORTS[sort])),
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
    used: dict[Metered, Usage] = {}
    for part in _slices(list(broker.metered())):
        used.update((who, who.total_usage()) for who in part)
        await asyncio.sleep(0)
    return used


def _row(queue: OpenQueue, moved: Usage, seconds: float) -> dict[str, Any]:
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


def _slices(items: Iterable[T]) -> Iterator[list[T]]:
    iterator = iter(items)
    while part := list(islice(iterator, SLICE_ITEMS)):
        yield part
