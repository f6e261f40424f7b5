"""Pages of topics: list, a queue's or stream's partitions, and changing how many there are.

Users who may enter the virtual host may look; those who may configure the queue may change its
partitions.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Annotated, NamedTuple

from fastapi import Depends, Request, Response

from leveret.core.settings.arguments import TYPES, type_of
from leveret.core.settings.partitioning import BY_KEY, NOT_BY_KEY, PARTITIONS_MAX, layout_of
from leveret.features.groups.unsettled import unsettled_beyond_retention
from leveret.features.topics.commands import topic_describe, topic_set_partitions
from leveret.features.topics.rows import topic_row
from leveret.mgmt_ui.api.listing import Segment
from leveret.mgmt_ui.api.problems import ApiError, bad_request, queue_not_found
from leveret.mgmt_ui.api.topic_objects import topics_kind, topics_of
from leveret.mgmt_ui.pages import formats
from leveret.mgmt_ui.pages.drawing import LAG_WIDTH, partition_bars
from leveret.mgmt_ui.pages.formats import path
from leveret.mgmt_ui.pages.forms import Form, FormHere, act, open_names
from leveret.mgmt_ui.pages.live import Frame, live_stream
from leveret.mgmt_ui.pages.rendering import page
from leveret.mgmt_ui.pages.tables import Column, list_rows, query_filters
from leveret.mgmt_ui.pages.viewing import ViewerHere
from leveret.mgmt_ui.routes import LazyRouter
from leveret.mgmt_ui.yielding import picked

if TYPE_CHECKING:
    from collections.abc import Mapping

    from leveret.core.queues.declared_queue import DeclaredQueue
    from leveret.mgmt_ui.api.views import Row
    from leveret.mgmt_ui.pages.viewing import Viewer

__all__ = ["router"]

COLUMNS = (
    Column("Name", "name"),
    Column("Virtual host", "vhost", minor=True),
    Column("Type", "type", minor=True),
    Column("Partitions", "partitions", numeric=True),
    Column("Retired", "retired", numeric=True, minor=True),
    Column("Placed by", "partition_by", minor=True),
    Column("Messages", "messages", numeric=True),
    Column("Unacked", "unacked", numeric=True),
    Column("Consumers", "consumers", numeric=True, minor=True),
    Column("Groups", "groups", numeric=True),
    Column("Retention", minor=True),
)
TOPIC = "/topics/{vhost}/{name}"
# What a filter by partitions means, by the words of its choice.
PARTITIONED = {
    "one": lambda layout: len(layout.present) == 1,
    "several": lambda layout: len(layout.present) > 1,
    "some retired": lambda layout: bool(layout.retired),
}

router = LazyRouter()


class TopicAddress(NamedTuple):
    """A topic as addresses name it."""

    vhost: str
    name: str

    @property
    def address(self) -> str:
        """Address of the topic's page."""
        return path("topics", *self)


async def _topic_address(vhost: Segment, name: Segment) -> TopicAddress:
    return TopicAddress(vhost, name)


TopicHere = Annotated[TopicAddress, Depends(_topic_address)]


@router.get("/topics")
async def list_topics(request: Request, viewer: ViewerHere) -> Response:
    """Show the topics that the user may list."""
    filters = query_filters(request, "vhost", "type", "partitions")
    kind = topics_kind(viewer.caller)
    found = await picked(await topics_of(viewer.caller), partial(_is_wanted, filters=filters))
    return page(
        request,
        viewer,
        "topics.html.j2",
        listing=await list_rows(request, found, kind, COLUMNS, filters),
        vhosts=open_names(viewer),
        types=TYPES,
        partitioned=list(PARTITIONED),
        retention=_retention,
    )


def _is_wanted(queue: DeclaredQueue, filters: Mapping[str, str]) -> bool:
    wanted, definition = PARTITIONED.get(filters["partitions"]), queue.definition
    return (
        filters["vhost"] in {"", definition.vhost}
        and filters["type"] in {"", type_of(definition.arguments)}
        and (wanted is None or wanted(layout_of(definition)))
    )


def _retention(row: Row) -> str:
    """Return in words what a topic keeps, as far as it is limited."""
    age_ms, octets, messages = (row[f"retention_{unit}"] for unit in ("ms", "bytes", "messages"))
    limits = [
        formats.duration(age_ms / 1000) if age_ms is not None else "",
        formats.size(octets) if octets is not None else "",
        f"{formats.count(messages)} messages" if messages is not None else "",
    ]
    return ", ".join(filter(None, limits))


@router.get(TOPIC)
async def show_topic(request: Request, viewer: ViewerHere, place: TopicHere) -> Response:
    """Show one topic: its partitions, and the lag of its groups."""
    return await _show(request, viewer, place, Form({}))


async def _show(
    request: Request,
    viewer: Viewer,
    place: TopicAddress,
    form: Form,
    *,
    preview: list[Row] | None = None,
    failure: str = "",
    status: int = 200,
) -> Response:
    """Return the page; after a form with its fields, and what would be or the error."""
    row = await viewer.caller.perform(topic_describe, **place._asdict())
    queue, partitions = _existing(viewer, place), row["partition_details"]
    keeps = queue.settings.retention is not None
    groups = viewer.broker.groups.of_queue(queue).values()
    return page(
        request,
        viewer,
        "topic.html.j2",
        status=status,
        topic=row,
        retention=_retention(row),
        keeps=keeps,
        unsettled=unsettled_beyond_retention(queue, groups, viewer.broker.timers.wall_ms()),
        bars=partition_bars(partitions, keeps=keeps),
        bar_width=LAG_WIDTH,
        figures=_figures(row),
        size=sum(each["bytes"] for each in partitions),
        by_key=row["partition_by"] not in NOT_BY_KEY,
        placement=_placement(row["partition_by"]),
        count_max=PARTITIONS_MAX,
        form=form,
        preview=preview,
        failure=failure,
        may={
            "read": viewer.may("read", "queue", *place),
            "change": viewer.may("configure", "queue", *place),
        },
    )


@router.get("/live" + TOPIC)
async def live(request: Request, viewer: ViewerHere, place: TopicHere) -> Response:
    """Stream the topic's figures; the stream ends with the topic."""
    _existing(viewer, place)

    async def frame() -> Frame:
        row = topic_row(_existing(viewer, place), viewer.broker.groups)
        return {"figures": _figures(row), "points": {}}

    return live_stream(request, viewer, frame)


def _existing(viewer: Viewer, place: TopicAddress) -> DeclaredQueue:
    """Return a queue that the user may see. Raises ApiError 401 and 404."""
    host = viewer.caller.vhost(place.vhost)
    held = host.queues.get(place.name)
    if held is None:
        raise queue_not_found(host, place.name)
    return viewer.broker.find_queue(host, place.name, held.owner)


def _figures(row: Row) -> dict[str, str]:
    numbers = ("partitions", "retired", "messages", "unacked", "consumers", "groups")
    return {key: formats.count(row[key]) for key in numbers}


def _placement(by: str | None) -> str:
    """Return in words where a message goes."""
    if by is None:
        return "All of its messages are in one log, in order."
    if by == BY_KEY:
        return (
            "Messages with the same x-partition-key, or the same routing key without one, are in "
            "the same partition, in order."
        )
    if by in NOT_BY_KEY:
        way = "at random" if by == "random" else "in turn"
        return f"Messages are placed {way}."
    return (
        f"Messages with the same header {by}, or the same routing key without one, are in the same "
        "partition, in order."
    )


# -- what can be done


@router.post(f"{TOPIC}/preview")
async def preview_change(
    request: Request, viewer: ViewerHere, form: FormHere, place: TopicHere
) -> Response:
    """Show which partitions there would be; an invalid form is shown again."""
    layout = layout_of(_existing(viewer, place).definition)
    try:
        planned = await viewer.caller.perform(
            topic_set_partitions, **place._asdict(), count=_count(form), dry_run=True
        )
    except ApiError as error:
        if error.status != 400:
            raise
        return await _show(request, viewer, place, form, failure=error.reason, status=error.status)
    rows = [
        {"partition": number, "effect": _effect(number, layout.active, layout.retired, planned)}
        for number in sorted([*planned["active"], *planned["retired"]])
    ]
    return await _show(request, viewer, place, form, preview=rows)


def _count(form: Form) -> int:
    """Return the number of partitions in a form. Raises ApiError 400."""
    try:
        count = form.integer("count")
    except ApiError:
        count = None
    if count is None:
        raise bad_request("enter how many partitions it shall have, a whole number")
    return count


def _effect(
    number: int, active: tuple[int, ...], retired: tuple[int, ...], planned: Mapping[str, list[int]]
) -> str:
    """Return what a change does to a partition: "" if nothing."""
    if number in planned["active"]:
        if number in retired:
            return "back"
        return "" if number in active else "new"
    return "retired" if number in active else "stays retired"


@router.post(f"{TOPIC}/partitions")
async def change(viewer: ViewerHere, form: FormHere, place: TopicHere) -> Response:
    """Give the topic more or fewer partitions."""
    _existing(viewer, place)
    count = _count(form)
    return await act(
        viewer,
        topic_set_partitions,
        **place._asdict(),
        count=count,
        dry_run=False,
        done=f"Queue {place.name} has {count} partition{'s' * (count != 1)} now.",
        then=place.address,
    )
