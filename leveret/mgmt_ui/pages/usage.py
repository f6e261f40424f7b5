"""Usage page: hourly usage of virtual hosts, users and queues.

Monitors see all; others see the virtual hosts that they may enter, and among users themselves.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fastapi import Request, Response

from leveret.mgmt_ui.api.problems import ApiError
from leveret.mgmt_ui.api.usage import visible_usage
from leveret.mgmt_ui.pages.charts import Chart
from leveret.mgmt_ui.pages.rendering import page
from leveret.mgmt_ui.pages.viewing import ViewerHere
from leveret.mgmt_ui.routes import LazyRouter
from leveret.ports.usage import HOUR_SECONDS, Subject

if TYPE_CHECKING:
    from leveret.mgmt_ui.api.views import Row
    from leveret.mgmt_ui.pages.viewing import Viewer

__all__ = ["router"]

HOURS = {"day": 24, "week": 7 * 24, "month": 30 * 24}
TITLES = {"day": "last day", "week": "last week", "month": "last 30 days"}
ROWS_MAX = 200  # of the table: the largest
NUMBERS = ("messages_in", "bytes_in", "messages_out", "bytes_out")

router = LazyRouter()


@router.get("/usage")
async def usage(request: Request, viewer: ViewerHere) -> Response:
    """Show the usage of a period, the largest first."""
    query = request.query_params
    subject = query.get("of", "") if query.get("of") in set(Subject) else Subject.QUEUE.value
    period = query.get("period", "") if query.get("period") in HOURS else "day"
    records: list[Row] = []
    failure = ""
    try:
        records = await _records(viewer, subject, HOURS[period])
    except ApiError as error:
        failure = error.reason
    rows = _sums(records)
    return page(
        request,
        viewer,
        "usage.html.j2",
        subject=subject,
        subjects=list(Subject),
        period=period,
        titles=TITLES,
        rows=rows[:ROWS_MAX],
        found=len(rows),
        chart=_chart(records, HOURS[period], viewer.now_ms),
        failure=failure,
    )


async def _records(viewer: Viewer, subject: str, hours: int) -> list[Row]:
    until = viewer.now_ms // 1000 // HOUR_SECONDS * HOUR_SECONDS + HOUR_SECONDS
    since = until - hours * HOUR_SECONDS
    return await visible_usage(
        viewer.caller, since=since, until=until, subject=subject, vhost=None, name=None
    )


def _sums(records: list[Row]) -> list[Row]:
    """Return the sum of each subject, the largest first."""
    sums: dict[tuple[str, str], Row] = {}
    for record in records:
        key = (record["vhost"], record["name"])
        row = sums.setdefault(key, {"vhost": key[0], "name": key[1], **dict.fromkeys(NUMBERS, 0)})
        for number in NUMBERS:
            row[number] += record[number]
    return sorted(sums.values(), key=_weight, reverse=True)


def _weight(row: Row) -> Any:
    return row["bytes_in"] + row["bytes_out"]


def _chart(records: list[Row], hours: int, now_ms: int) -> Chart:
    """Return a chart of the sum of all records, by hour."""
    sums: dict[int, list[float | None]] = {}
    last = now_ms // 1000 // HOUR_SECONDS * HOUR_SECONDS
    for hour in range(last - (hours - 1) * HOUR_SECONDS, last + 1, HOUR_SECONDS):
        sums[hour] = [0, 0]
    for record in records:
        octets = sums.get(record["hour"])
        if octets is not None:
            octets[0] = (octets[0] or 0) + record["bytes_in"]
            octets[1] = (octets[1] or 0) + record["bytes_out"]
    points = [(hour * 1000, values) for hour, values in sums.items()]
    return Chart("usage", "Bytes an hour", "bytes", ("in", "out"), points, hours * HOUR_SECONDS)
