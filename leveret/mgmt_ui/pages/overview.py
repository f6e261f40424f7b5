"""Overview page of the node."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fastapi import APIRouter, Request, Response

from leveret import __version__
from leveret.features.alerts.commands import alert_row
from leveret.mgmt_ui.api.overview import object_totals
from leveret.mgmt_ui.objects import message_counts
from leveret.mgmt_ui.operations.node import node_diagnose
from leveret.mgmt_ui.pages import formats
from leveret.mgmt_ui.pages.charts import DEFAULT, PERIODS, Chart, period_named
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
from leveret.mgmt_ui.pages.viewing import AdministratorHere, ViewerHere

if TYPE_CHECKING:
    from collections.abc import Sequence

    from leveret.mgmt_ui.api.views import Row
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


# Quantiles of the delivery latency, by label.
QUANTILES = {"p50": 0.5, "p95": 0.95, "p99": 0.99}


@router.get("/overview")
async def overview(request: Request, viewer: ViewerHere) -> Response:
    """Show the page."""
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
        alarms_elsewhere=[(name, low.value) for name, low in viewer.broker.alarms.elsewhere],
        alerts=_firing(viewer),
        facts=await _node_facts(viewer),
    )


@router.get("/findings")
async def show_findings(request: Request, viewer: AdministratorHere) -> Response:
    """Show the findings of the health checks; takes a fraction of a second."""
    found = await viewer.caller.perform(node_diagnose)
    return page(request, viewer, "findings.html.j2", findings=found)


@router.get("/live/overview")
async def live(request: Request, viewer: ViewerHere) -> Response:
    """Stream the page's figures."""
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
    """Return the charts of the whole node, for monitors only."""
    if not viewer.caller.is_monitor:
        return ()
    statistics = viewer.broker.statistics
    return (
        chart_of_rates(statistics, None, FLOW, period),
        chart_of_lengths(statistics, None, period),
        Chart(
            "latency",
            "Latency from publish to delivery, since this page was opened",
            "seconds",
            tuple(QUANTILES),
            window_seconds=min(period.age_seconds, DEFAULT.age_seconds),
        ),
    )


def _quantiles(bounds: Sequence[int], counts: Sequence[int]) -> list[float | None]:
    """Return quantiles in seconds, from buckets in milliseconds."""
    found = (quantile(bounds, counts, part) for part in QUANTILES.values())
    return [None if value is None else value / 1000 for value in found]


def _latency_figures(viewer: Viewer) -> dict[str, str]:
    """Return latency quantiles since the node's start."""
    if not viewer.caller.is_monitor:
        return {}
    latency = viewer.broker.statistics.latency
    values = _quantiles(latency.bounds, latency.counts)
    return {name: formats.duration(value) for name, value in zip(QUANTILES, values, strict=True)}


def _churn(viewer: Viewer) -> dict[str, tuple[int, float]]:
    """Return churn counts since the node's start, and current rates per second."""
    if not viewer.caller.is_monitor:
        return {}
    statistics = viewer.broker.statistics
    return {
        name.replace("_", " "): (number, statistics.rate(statistics.churn, name))
        for name, number in statistics.churn.totals().items()
    }


def _firing(viewer: Viewer) -> list[Row]:
    """Return the firing alerts of virtual hosts that the user may see."""
    alerting = viewer.node.context.alerting
    if alerting is None:
        return []
    visible = {vhost.name for vhost in viewer.caller.visible_vhosts()}
    return [alert_row(alert) for alert in alerting.firing if alert.rule.vhost in visible]


async def _node_facts(viewer: Viewer) -> dict[str, str]:
    """Return the node's resource usage and limits."""
    runtime = viewer.node.context.runtime
    if runtime is None or not viewer.caller.is_monitor:
        return {}
    facts = await runtime.facts()
    count, size = formats.count, formats.size
    configuration = viewer.node.configuration
    return {
        "Memory": f"{size(facts['memory_bytes'])} of {size(facts['memory_bytes_max'])}",
        "Free disk": f"{size(facts['disk_free_bytes'])}, "
        f"at least {size(facts['disk_free_bytes_min'])}",
        "Open files": f"{count(facts['open_files'])} of {count(facts['open_files_max'])}",
        "Uptime": formats.duration(facts["uptime_ms"] / 1000),
        "Version": __version__,
        "Reported as": f"{configuration.product} {configuration.version}",
        "Durability": configuration.durability.value,
    }


async def _figures(viewer: Viewer) -> dict[str, str]:
    await viewer.node.context.queues.refresh()
    counts = await message_counts(viewer.caller.visible_vhosts())
    counts |= await object_totals(viewer.caller)
    return {name: formats.count(number) for name, number in counts.items()}
