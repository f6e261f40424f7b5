"""Pages of queues and streams: list, details, and changes."""

from __future__ import annotations

from functools import partial
from itertools import islice
from operator import itemgetter
from typing import TYPE_CHECKING, Any

from fastapi import Request, Response

from leveret.core.admin.commands import AnyCommand
from leveret.core.settings.arguments import TYPES
from leveret.core.settings.partitioning import numbers_text
from leveret.features.celery.eta_hold import EtaHold
from leveret.features.groups.rows import group_row
from leveret.features.retry.retrying import retries_waiting
from leveret.features.topics.rows import is_topic
from leveret.mgmt_ui.api import views
from leveret.mgmt_ui.api.callers import require_to_declare
from leveret.mgmt_ui.api.listing import ObjectKind, Segment
from leveret.mgmt_ui.api.problems import ApiError, queue_not_found
from leveret.mgmt_ui.objects import queues_of
from leveret.mgmt_ui.operations.topology import (
    queue_declare,
    queue_delete,
    queue_pause,
    queue_purge,
    queue_resume,
)
from leveret.mgmt_ui.pages import clients, formats
from leveret.mgmt_ui.pages.charts import PERIODS, period_named
from leveret.mgmt_ui.pages.formats import path
from leveret.mgmt_ui.pages.forms import Form, FormHere, act, arguments_of, open_names, seeing
from leveret.mgmt_ui.pages.histories import (
    DELIVERIES,
    chart_of_lengths,
    chart_of_rates,
    latest_lengths,
    latest_rates,
)
from leveret.mgmt_ui.pages.live import Frame, live_stream
from leveret.mgmt_ui.pages.rendering import page
from leveret.mgmt_ui.pages.tables import Column, list_rows, query_filters
from leveret.mgmt_ui.pages.viewing import ViewerHere
from leveret.mgmt_ui.routes import LazyRouter
from leveret.mgmt_ui.yielding import picked

if TYPE_CHECKING:
    from leveret.core.queues.declared_queue import DeclaredQueue
    from leveret.core.statistics.statistics import Statistics
    from leveret.mgmt_ui.api.views import Row
    from leveret.mgmt_ui.pages.viewing import Viewer
    from leveret.ports import LogFile

__all__ = ["router"]

router = LazyRouter()

COLUMNS = (
    Column("Name", "name"),
    Column("Virtual host", "vhost", minor=True),
    Column("Type", "type", minor=True),
    Column("State", "state"),
    Column("Properties", minor=True),
    Column("Policy", "policy", minor=True),
    Column("Ready", "messages_ready", numeric=True),
    Column("Unacked", "messages_unacknowledged", numeric=True),
    Column("Total", "messages", numeric=True),
    Column("Consumers", "consumers", numeric=True),
    Column("In", "publish_rate", numeric=True),
    Column("Delivered", "deliver_rate", numeric=True),
    Column("Acked", "ack_rate", numeric=True),
)
FILES_SHOWN_MAX = 50  # of a log, the newest: a large topic has thousands
STATES = ("running", "paused")
ROWS_MAX = 500  # consumers and bindings on the page of one queue; the API has all


@router.get("/queues")
async def list_queues(request: Request, viewer: ViewerHere) -> Response:
    """Show the queues that the user may list."""
    return await _list(request, viewer, Form({}), "")


async def _list(
    request: Request, viewer: Viewer, form: Form, failure: str, status: int = 200
) -> Response:
    """Return the list page; after an invalid form with its fields and the error."""
    filters = query_filters(request, "vhost", "type", "state")
    wanted = {name: value for name, value in filters.items() if value}
    found = queues_of(viewer.caller.open_vhosts())
    if wanted:
        found = await picked(found, partial(_is_wanted, wanted=wanted))
    kind: ObjectKind[Any] = ObjectKind(
        lambda queue: (queue.definition.name, queue.definition.vhost),
        partial(_row, viewer),
        ("name", "vhost"),
    )
    return page(
        request,
        viewer,
        "queues.html.j2",
        status=status,
        listing=await list_rows(request, found, kind, COLUMNS, filters),
        vhosts=open_names(viewer),
        types=TYPES,
        states=STATES,
        form=form,
        failure=failure,
    )


def _row(viewer: Viewer, queue: Any) -> Row:
    rate = partial(viewer.broker.statistics.rate, queue)
    return {
        **views.queue_row(queue, viewer.node.name),
        "publish_rate": rate("publish"),
        "deliver_rate": rate("deliver_get"),
        "ack_rate": rate("ack"),
    }


def _is_wanted(queue: Any, wanted: dict[str, str]) -> bool:
    basics = views.queue_basics(queue, "")
    return all(basics[name] == value for name, value in wanted.items())


@router.post("/queues")
async def declare_queue(request: Request, viewer: ViewerHere, form: FormHere) -> Response:
    """Declare a queue; an invalid form is shown again."""
    vhost, name = form.text("vhost", "/"), form.text("name")
    try:
        host = viewer.caller.vhost(vhost)
        arguments = arguments_of(form)
        await require_to_declare(viewer.caller, host, "queue", name, arguments)
        declared = await viewer.caller.perform(
            queue_declare,
            vhost=vhost,
            name=name,
            type_=form.word("type") or None,
            durable=form.flag("durable"),
            auto_delete=form.flag("auto_delete"),
            arguments=arguments,
        )
    except ApiError as error:
        if error.status == 401:
            raise
        return await _list(request, viewer, form, error.reason, error.status)
    viewer.session.tell(f"Queue {declared} in {vhost} was declared.")
    return seeing(path("queues", vhost, declared))


@router.get("/queues/{vhost}/{name}")
async def show_queue(
    request: Request, viewer: ViewerHere, vhost: Segment, name: Segment
) -> Response:
    """Show one queue: message counts, rates, consumers and bindings."""
    queue = _existing(viewer, vhost, name)
    period = period_named(request.query_params.get("period", ""))
    row = views.queue_row(queue, viewer.node.name)
    bindings = viewer.caller.vhost(vhost).topology.graph.queue_bindings.get(name, {})
    channels = clients.channels_of(viewer.broker.connections)
    groups = viewer.broker.groups.of_queue(queue).values()
    consumers = (each for each in clients.consumers_of(channels) if each.queue.whole is queue)
    return page(
        request,
        viewer,
        "queue.html.j2",
        queue=row,
        figures=_figures(queue, viewer.broker.statistics) | _lags(viewer, queue),
        groups=sorted(map(group_row, islice(groups, ROWS_MAX)), key=itemgetter("name")),
        is_topic=is_topic(queue),
        keeps_messages=queue.settings.retention is not None,
        charts=(
            chart_of_lengths(viewer.broker.statistics, queue, period),
            chart_of_rates(viewer.broker.statistics, queue, DELIVERIES, period),
        ),
        periods=PERIODS,
        period=period,
        partitions=numbers_text(row.get("partitions", ())),
        log=_log_facts(queue),
        files=_newest_files(queue),
        file_count=sum(len(part.log.list_files()) for part in queue.partitions),
        consumers=[clients.consumer_row(each) for each in islice(consumers, ROWS_MAX)],
        bindings=[views.binding_row(binding) for binding in islice(bindings.values(), ROWS_MAX)],
        binding_count=len(bindings),
        rows_max=ROWS_MAX,
        waiting=views.waiting_counts(queue),
        retries=not queue.settings.is_stream
        and (queue.settings.retry is not None or retries_waiting(queue) is not None),
        holds_tasks=any(part.extension(EtaHold) is not None for part in queue.partitions),
        may=_rights(viewer, vhost, name),
    )


@router.get("/live/queues/{vhost}/{name}")
async def live(request: Request, viewer: ViewerHere, vhost: Segment, name: Segment) -> Response:
    """Stream the queue's figures; the stream ends with the queue."""
    _existing(viewer, vhost, name)
    statistics = viewer.broker.statistics

    async def frame() -> Frame:
        queue = _existing(viewer, vhost, name)
        points = {
            "lengths": latest_lengths(statistics, views.queue_counts(queue)),
            "rates": latest_rates(statistics, queue, DELIVERIES),
        }
        figures = _figures(queue, statistics) | _lags(viewer, queue)
        return {"figures": figures, "points": points}

    return live_stream(request, viewer, frame)


# -- what can be done


@router.post("/queues/{vhost}/{name}/purge")
async def purge(viewer: ViewerHere, form: FormHere, vhost: Segment, name: Segment) -> Response:
    """Purge ready messages, and waiting ones if the form says so."""
    _existing(viewer, vhost, name)
    waiting = form.flag("waiting")
    done = f"The ready{' and waiting' * waiting} messages of queue {name} were deleted."
    return await _act(viewer, queue_purge, vhost, name, done, waiting=waiting)


@router.post("/queues/{vhost}/{name}/delete")
async def delete(viewer: ViewerHere, form: FormHere, vhost: Segment, name: Segment) -> Response:
    """Delete the queue with its messages."""
    _existing(viewer, vhost, name)
    return await act(
        viewer,
        queue_delete,
        vhost=vhost,
        name=name,
        if_empty=form.flag("if_empty"),
        if_unused=form.flag("if_unused"),
        done=f"Queue {name} in {vhost} was deleted.",
        then="/queues",
        otherwise=path("queues", vhost, name),
    )


@router.post("/queues/{vhost}/{name}/pause")
async def pause(viewer: ViewerHere, form: FormHere, vhost: Segment, name: Segment) -> Response:
    """Pause delivery, and publishing if the form says so."""
    _existing(viewer, vhost, name)
    done = f"Queue {name} was paused."
    publishing = form.flag("publishing")
    return await _act(viewer, queue_pause, vhost, name, done, publishing=publishing)


@router.post("/queues/{vhost}/{name}/resume")
async def resume(viewer: ViewerHere, _: FormHere, vhost: Segment, name: Segment) -> Response:
    """Resume the queue."""
    _existing(viewer, vhost, name)
    return await _act(viewer, queue_resume, vhost, name, f"Queue {name} was resumed.")


async def _act(
    viewer: Viewer, operation: AnyCommand, vhost: str, name: str, done: str, **more: Any
) -> Response:
    then = path("queues", vhost, name)
    return await act(viewer, operation, vhost=vhost, name=name, done=done, then=then, **more)


# -- what is shown


def _existing(viewer: Viewer, vhost: str, name: str) -> DeclaredQueue:
    """Return a queue that the user may see. Raises ApiError 401 and 404."""
    host = viewer.caller.vhost(vhost)
    held = host.queues.get(name)
    if held is None:
        raise queue_not_found(host, name)
    return viewer.broker.find_queue(host, name, held.owner)


def _rights(viewer: Viewer, vhost: str, name: str) -> dict[str, bool]:
    """Return which actions to offer."""
    configure = viewer.may("configure", "queue", vhost, name)
    read, write = (viewer.may(verb, "queue", vhost, name) for verb in ("read", "write"))
    return {
        "purge": read,
        "configure": configure,
        "rename": configure and read and write,
        "publish": viewer.may("write", "exchange", vhost, "amq.default"),
        "delete": configure and viewer.node.context.http_delete,
        "bind": write,
    }


def _figures(queue: DeclaredQueue, statistics: Statistics) -> dict[str, str]:
    counts = {
        **views.queue_counts(queue),
        **views.waiting_counts(queue),
        "consumers": queue.consumer_count,
    }
    share = views.consumer_utilisation(queue, statistics) if queue.consumer_count else None
    return {
        **{name: formats.count(number) for name, number in counts.items()},
        "consumer_utilisation": formats.share(share),
    }


def _lags(viewer: Viewer, queue: DeclaredQueue) -> dict[str, str]:
    """Return the figures of the queue's consumer groups."""
    groups = viewer.broker.groups.of_queue(queue).items()
    return {f"lag of {name}": formats.count(group.lag) for name, group in islice(groups, ROWS_MAX)}


def _newest_files(queue: DeclaredQueue) -> list[LogFile]:
    newest = [part.log.list_files()[: -FILES_SHOWN_MAX - 1 : -1] for part in queue.partitions]
    return [file for files in newest for file in files][:FILES_SHOWN_MAX]


def _log_facts(queue: DeclaredQueue) -> Row:
    """Return facts about the queue's log."""
    logs, retention = [part.log for part in queue.partitions], queue.settings.retention
    facts: Row = {}
    if len(logs) == 1:
        log = logs[0]
        facts = {
            "First offset": formats.count(log.first),
            "Next offset": formats.count(log.end),
            "Committed": formats.count(log.committed),
        }
    facts |= {
        "Size": formats.size(sum(file.size for log in logs for file in log.list_files())),
        "Partitions": formats.count(len(logs)),
        "Replicas": "this node",
    }
    if retention is not None:
        age_ms, octets = retention.age_ms_max, retention.bytes_max
        facts["Retention time"] = "unlimited" if age_ms is None else formats.duration(age_ms / 1000)
        facts["Retention size"] = "unlimited" if octets is None else formats.size(octets)
        if retention.records_max is not None:
            facts["Retention messages"] = formats.count(retention.records_max)
    return facts
