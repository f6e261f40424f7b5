"""GET /overview: the node at a glance."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fastapi import APIRouter, Request, Response

from leveret.mgmt_ui.api.answers import message_counts
from leveret.mgmt_ui.api.overview import object_totals
from leveret.mgmt_ui.pages import formats
from leveret.mgmt_ui.pages.charts import PERIODS, Chart, period_named
from leveret.mgmt_ui.pages.histories import (
    FLOW,
    chart_of_lengths,
    chart_of_rates,
    latest_lengths,
    latest_rates,
    quantile,
)
from leveret.mgmt_ui.pages.live import Frame, live_stream
from leveret.mgmt_ui.pages.rendering import page
from leveret.mgmt_ui.pages.viewing import ViewerHere

if TYPE_CHECKING:
    from collections.abc import Sequence

    from leveret.mgmt_ui.pages.charts import Period
    from leveret.mgmt_ui.pages.viewing import Viewer

__all__ = ["router"]

router = APIRouter()

BACKLOG = {
    "messages": "Messages",
    "messages_ready": "Ready",
    "messages_unacknowledged": "Unacknowledged",
}
THINGS = {
    "connections": "Connections",
    "channels": "Channels",
    "consumers": "Consumers",
    "exchanges": "Exchanges",
    "queues": "Queues",
}


# What so many of the deliveries took at most.
QUANTILES = {"Half": 0.5, "95 %": 0.95, "99 %": 0.99}


@router.get("/overview")
async def overview(request: Request, viewer: ViewerHere) -> Response:
    """The page."""
    period = period_named(request.query_params.get("period", ""))
    return page(
        request,
        viewer,
        "overview.html.j2",
        figures=await _figures(viewer),
        backlog=BACKLOG,
        things=THINGS,
        charts=_charts(viewer, period),
        periods=PERIODS,
        period=period,
        latency=_latency_figures(viewer),
        churn=_churn(viewer),
        alarms=[low.value for low in viewer.broker.alarms.low],
    )


@router.get("/live/overview")
async def live(request: Request, viewer: ViewerHere) -> Response:
    """Its figures, as they change."""
    statistics = viewer.broker.statistics
    before = statistics.latency.counts

    async def frame() -> Frame:
        nonlocal before
        figures = await _figures(viewer)
        if not viewer.caller.is_monitor:
            return {"figures": figures, "points": {}}
        counts = statistics.latency.counts
        since = [now - then for now, then in zip(counts, before, strict=True)]
        before = counts
        lengths = await message_counts(viewer.caller.visible_vhosts())
        points = {
            "rates": latest_rates(statistics, None, FLOW),
            "lengths": latest_lengths(statistics, lengths),
            "latency": [statistics.tick_ms / 1000, *_quantiles(statistics.latency.bounds, since)],
        }
        return {"figures": {**figures, **_latency_figures(viewer)}, "points": points}

    return live_stream(request, viewer, frame)


def _charts(viewer: Viewer, period: Period) -> tuple[Chart, ...]:
    """Those of the whole node, for who may see what is others'."""
    if not viewer.caller.is_monitor:
        return ()
    statistics = viewer.broker.statistics
    return (
        chart_of_rates(statistics, None, FLOW, period),
        chart_of_lengths(statistics, None, period),
        Chart(
            "latency",
            "Time from publishing to delivery, since this page was opened",
            "seconds",
            tuple(QUANTILES),
            window_seconds=600,
        ),
    )


def _quantiles(bounds: Sequence[int], counts: Sequence[int]) -> list[float | None]:
    """In seconds, of buckets in milliseconds."""
    found = (quantile(bounds, counts, part) for part in QUANTILES.values())
    return [None if value is None else value / 1000 for value in found]


def _latency_figures(viewer: Viewer) -> dict[str, str]:
    """Since the node's start."""
    if not viewer.caller.is_monitor:
        return {}
    latency = viewer.broker.statistics.latency
    values = _quantiles(latency.bounds, latency.counts)
    return {name: formats.duration(value) for name, value in zip(QUANTILES, values, strict=True)}


def _churn(viewer: Viewer) -> dict[str, tuple[int, float]]:
    """What came and went since the node's start, and how much a second of late."""
    if not viewer.caller.is_monitor:
        return {}
    statistics = viewer.broker.statistics
    return {
        name.replace("_", " "): (number, statistics.rate(statistics.churn, name))
        for name, number in statistics.churn.totals().items()
    }


async def _figures(viewer: Viewer) -> dict[str, str]:
    counts = await message_counts(viewer.caller.visible_vhosts())
    counts |= await object_totals(viewer.caller)
    return {name: formats.count(number) for name, number in counts.items()}
