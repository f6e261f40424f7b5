"""Pages of consumer groups: list, details, and moving one to other offsets.

Users who may enter the virtual host may look; those who may consume from the queue may reset and
delete its groups.
"""

from __future__ import annotations

from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING, Annotated, NamedTuple

from fastapi import Depends, Request, Response

from leveret.core.settings.stream_offsets import interval_ms
from leveret.features.groups.commands import group_delete, group_describe, group_reset_offsets
from leveret.features.groups.rows import GroupState, group_row, group_state
from leveret.mgmt_ui.api.consumer_groups import groups_kind, groups_of
from leveret.mgmt_ui.api.listing import Segment
from leveret.mgmt_ui.api.problems import ApiError, bad_request, not_found
from leveret.mgmt_ui.pages import formats
from leveret.mgmt_ui.pages.charts import PERIODS, period_named
from leveret.mgmt_ui.pages.drawing import LAG_WIDTH, lag_bars
from leveret.mgmt_ui.pages.formats import epoch_ms, path
from leveret.mgmt_ui.pages.forms import Form, FormHere, act, open_names
from leveret.mgmt_ui.pages.histories import chart_of_lags, latest_lags
from leveret.mgmt_ui.pages.live import Frame, live_stream
from leveret.mgmt_ui.pages.rendering import page
from leveret.mgmt_ui.pages.tables import Column, list_rows, query_filters
from leveret.mgmt_ui.pages.viewing import ViewerHere
from leveret.mgmt_ui.routes import LazyRouter
from leveret.mgmt_ui.yielding import picked

if TYPE_CHECKING:
    from leveret.features.groups.groups import ConsumerGroup
    from leveret.mgmt_ui.api.views import Row
    from leveret.mgmt_ui.pages.viewing import Viewer

__all__ = ["router"]

COLUMNS = (
    Column("Group", "name"),
    Column("Queue", "queue"),
    Column("Virtual host", "vhost", minor=True),
    Column("Lag", "lag", numeric=True),
    Column("Members", "members", numeric=True),
    Column("State", "state"),
    Column("Unacked", "unacked", numeric=True, minor=True),
    Column("Partitions", "partitions", numeric=True, minor=True),
)
GROUP = "/consumer-groups/{vhost}/{queue}/{name}"
DIGITS_MAX = 9  # of a partition's number
PLACES = ("earliest", "latest", "offset", "age", "time")

router = LazyRouter()


class GroupAddress(NamedTuple):
    """A group as addresses name it."""

    vhost: str
    queue: str
    name: str

    def __str__(self) -> str:
        return f"Consumer group {self.name} of queue {self.queue}"

    @property
    def address(self) -> str:
        """Address of the group's page."""
        return path("consumer-groups", *self)


async def _group_address(vhost: Segment, queue: Segment, name: Segment) -> GroupAddress:
    return GroupAddress(vhost, queue, name)


GroupHere = Annotated[GroupAddress, Depends(_group_address)]


@router.get("/consumer-groups")
async def list_groups(request: Request, viewer: ViewerHere) -> Response:
    """Show the consumer groups that the user may list."""
    filters = query_filters(request, "vhost", "queue", "state")
    found = await picked(await groups_of(viewer.caller), partial(_is_wanted, filters=filters))
    return page(
        request,
        viewer,
        "consumer_groups.html.j2",
        listing=await list_rows(request, found, groups_kind(), COLUMNS, filters),
        vhosts=open_names(viewer),
        states=list(GroupState),
    )


def _is_wanted(group: ConsumerGroup, filters: dict[str, str]) -> bool:
    return (
        filters["vhost"] in {"", group.group.vhost}
        and filters["queue"] in {"", group.name}
        and filters["state"] in {"", group_state(group)}
    )


@router.get(GROUP)
async def show_group(request: Request, viewer: ViewerHere, place: GroupHere) -> Response:
    """Show one group: its lag by partition, and its members."""
    return await _show(request, viewer, place, Form({}))


async def _show(
    request: Request,
    viewer: Viewer,
    place: GroupAddress,
    form: Form,
    *,
    to: str = "",
    partitions: list[int] | None = None,
    preview: list[Row] | None = None,
    failure: str = "",
    status: int = 200,
) -> Response:
    """Return the page of a group; after a form with its fields, and what would be or the error."""
    row = await viewer.caller.perform(group_describe, **place._asdict())
    group = await _existing(viewer, place)
    period = period_named(request.query_params.get("period", ""))
    return page(
        request,
        viewer,
        "consumer_group.html.j2",
        status=status,
        group=row,
        owners=_owners(row),
        bars=lag_bars(row["partition_details"]),
        bar_width=LAG_WIDTH,
        figures=_figures(row),
        chart=chart_of_lags(viewer.broker.statistics, group, period),
        periods=PERIODS,
        period=period,
        form=form,
        places=PLACES,
        to=to,
        partitions=partitions,
        preview=preview,
        failure=failure,
        is_in_use=group.is_in_use,
        may_change=viewer.may("read", "queue", place.vhost, place.queue),
    )


@router.get("/live" + GROUP)
async def live(request: Request, viewer: ViewerHere, place: GroupHere) -> Response:
    """Stream the group's figures; the stream ends with the group."""
    await _existing(viewer, place)

    async def frame() -> Frame:
        row = group_row(await _existing(viewer, place))
        points = {"lags": latest_lags(viewer.broker.statistics, row)}
        return {"figures": _figures(row), "points": points}

    return live_stream(request, viewer, frame)


async def _existing(viewer: Viewer, place: GroupAddress) -> ConsumerGroup:
    """Return a group that the user may see. Raises ApiError 401 and 404."""
    for group in await groups_of(viewer.caller, place.vhost, place.queue):
        if group.group.name == place.name:
            return group
    raise not_found("group_not_found")


def _owners(row: Row) -> dict[int, Row]:
    """Return the member that each partition is delivered to."""
    return {number: each for each in row["member_details"] for number in each["partitions"]}


def _figures(row: Row) -> dict[str, str]:
    numbers = ("lag", "unacked", "members", "partitions")
    return {key: formats.count(row[key]) for key in numbers}


# -- what can be done


@router.post(f"{GROUP}/preview")
async def preview_reset(
    request: Request, viewer: ViewerHere, form: FormHere, place: GroupHere
) -> Response:
    """Show where the group would go on; an invalid form is shown again."""
    try:
        to, partitions = _wanted(form, viewer.now_ms), _partitions(form)
        rows = await viewer.caller.perform(
            group_reset_offsets, **place._asdict(), to=to, partitions=partitions, dry_run=True
        )
    except ApiError as error:
        if error.status not in {400, 404}:
            raise
        return await _show(request, viewer, place, form, failure=error.reason, status=error.status)
    return await _show(request, viewer, place, form, to=to, partitions=partitions, preview=rows)


def _partitions(form: Form) -> list[int] | None:
    """Return the partitions in a form, None for all. Raises ApiError 400."""
    words = form.word("partitions").replace(",", " ").split()
    if not all(word.isascii() and word.isdigit() and len(word) < DIGITS_MAX for word in words):
        raise bad_request("partitions are whole numbers, such as 0, 2")
    return [int(word) for word in words] or None


def _wanted(form: Form, now_ms: int) -> str:
    """Return the place in a form as the command takes it. Raises ApiError 400.

    An age becomes a time, so that what is applied is what was shown.
    """
    place = form.word("place")
    if place not in PLACES:
        raise bad_request("select where the group shall go on")
    if place in {"earliest", "latest"}:
        return place
    value = form.word(place)
    if not value:
        raise bad_request(f"enter the {place} at which the group shall go on")
    if place == "offset":
        if not (value.isascii() and value.isdigit()):
            raise bad_request("an offset is a whole number")
        return value
    if place == "time":
        return _iso(epoch_ms(value))
    age_ms = interval_ms(value)
    if age_ms is None:
        raise bad_request("an age is a number with a unit, such as 30m, 2h or 7D")
    return _iso(max(now_ms - age_ms, 0))


def _iso(epoch_ms: int) -> str:
    return datetime.fromtimestamp(epoch_ms / 1000, UTC).isoformat()


@router.post(f"{GROUP}/reset")
async def reset(viewer: ViewerHere, form: FormHere, place: GroupHere) -> Response:
    """Let the group go on elsewhere."""
    to = form.word("to")
    return await act(
        viewer,
        group_reset_offsets,
        **place._asdict(),
        to=to,
        partitions=_partitions(form),
        dry_run=False,
        done=f"{place} was reset to {to}.",
        then=place.address,
    )


@router.post(f"{GROUP}/delete")
async def delete(viewer: ViewerHere, _: FormHere, place: GroupHere) -> Response:
    """Delete the group, and what it remembers."""
    return await act(
        viewer,
        group_delete,
        **place._asdict(),
        done=f"{place} was deleted.",
        then="/consumer-groups",
        otherwise=place.address,
    )
