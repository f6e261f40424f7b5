"""Pages of exchanges and their bindings: list, details with a drawing, and changes."""

from __future__ import annotations

from itertools import chain
from typing import TYPE_CHECKING, Any

from fastapi import Request, Response

from leveret.core.admin.commands import AnyCommand
from leveret.core.exchanges import EXCHANGE_TYPES, describe_type
from leveret.mgmt_ui.api import views
from leveret.mgmt_ui.api.bindings import Ends, require_to_bind
from leveret.mgmt_ui.api.callers import require_to_declare
from leveret.mgmt_ui.api.listing import ObjectKind, Segment
from leveret.mgmt_ui.api.problems import ApiError, not_found
from leveret.mgmt_ui.operations.topology import (
    binding_declare,
    binding_delete,
    exchange_declare,
    exchange_delete,
)
from leveret.mgmt_ui.pages.charts import PERIODS, period_named
from leveret.mgmt_ui.pages.drawing import draw
from leveret.mgmt_ui.pages.formats import path
from leveret.mgmt_ui.pages.forms import Form, FormHere, act, arguments_of, open_names, seeing
from leveret.mgmt_ui.pages.histories import THROUGH, chart_of_rates, latest_rates
from leveret.mgmt_ui.pages.live import Frame, live_stream
from leveret.mgmt_ui.pages.publishing import BLANK, publish_written
from leveret.mgmt_ui.pages.rendering import page
from leveret.mgmt_ui.pages.tables import Column, list_rows, query_filters
from leveret.mgmt_ui.pages.viewing import ViewerHere
from leveret.mgmt_ui.routes import LazyRouter
from leveret.mgmt_ui.yielding import picked

if TYPE_CHECKING:
    from leveret.core.routing.exchange import Exchange
    from leveret.mgmt_ui.api.views import Row
    from leveret.mgmt_ui.pages.viewing import Viewer

__all__ = ["router"]

router = LazyRouter()

COLUMNS = (
    Column("Name", "name"),
    Column("Virtual host", "vhost", minor=True),
    Column("Type", "type"),
    Column("Properties", minor=True),
    Column("Policy", "policy", minor=True),
    Column("Bindings out", "outgoing", numeric=True),
    Column("Bindings in", "incoming", numeric=True),
)
BINDINGS_SHOWN_MAX = 500  # on the page of one exchange; the API has all


def _row(exchange: Exchange) -> Row:
    return {
        **views.exchange_row(exchange),
        "policy": exchange.policy.policy,
        "outgoing": len(exchange.outgoing),
        "incoming": len(exchange.incoming),
    }


EXCHANGES: ObjectKind[Exchange] = ObjectKind(
    lambda exchange: (exchange.name, exchange.definition.vhost), _row, ("name", "vhost")
)


@router.get("/exchanges")
async def list_exchanges(request: Request, viewer: ViewerHere) -> Response:
    """Show the exchanges that the user may list, the predeclared ones included."""
    return await _list(request, viewer, Form({}), "")


async def _list(
    request: Request, viewer: Viewer, form: Form, failure: str, status: int = 200
) -> Response:
    """Return the list page; after an invalid form with its fields and the error."""
    filters = query_filters(request, "vhost", "type")
    hosts = [host for host in viewer.caller.open_vhosts() if filters["vhost"] in {"", host.name}]
    found = await picked(
        list(chain.from_iterable(host.exchanges.values() for host in hosts)),
        lambda exchange: filters["type"] in {"", exchange.definition.type},
    )
    return page(
        request,
        viewer,
        "exchanges.html.j2",
        status=status,
        listing=await list_rows(request, found, EXCHANGES, COLUMNS, filters),
        vhosts=open_names(viewer),
        types={name: describe_type(name) for name in sorted(EXCHANGE_TYPES)},
        form=form,
        failure=failure,
    )


@router.post("/exchanges")
async def declare_exchange(request: Request, viewer: ViewerHere, form: FormHere) -> Response:
    """Declare an exchange; an invalid form is shown again."""
    vhost, name = form.text("vhost", "/"), form.text("name")
    try:
        host = viewer.caller.vhost(vhost)
        arguments = arguments_of(form)
        await require_to_declare(viewer.caller, host, "exchange", name, arguments)
        await viewer.caller.perform(
            exchange_declare,
            vhost=vhost,
            name=name,
            type_=form.text("type"),
            durable=form.flag("durable"),
            auto_delete=form.flag("auto_delete"),
            internal=form.flag("internal"),
            arguments=arguments,
        )
    except ApiError as error:
        if error.status == 401:
            raise
        return await _list(request, viewer, form, error.reason, error.status)
    viewer.session.tell(f"Exchange {name} in {vhost} was declared.")
    return seeing(path("exchanges", vhost, name))


@router.get("/exchanges/{vhost}/{name}")
async def show_exchange(
    request: Request, viewer: ViewerHere, vhost: Segment, name: Segment
) -> Response:
    """Show one exchange; the default one is `amq.default` in its address."""
    exchange = _existing(viewer, vhost, name)
    period = period_named(request.query_params.get("period", ""))
    incoming = [views.binding_row(each) for each in _some(exchange.incoming.values())]
    outgoing = [views.binding_row(each) for each in _some(exchange.outgoing.values())]
    configure = viewer.may("configure", "exchange", vhost, exchange.name or "amq.default")
    return page(
        request,
        viewer,
        "exchange.html.j2",
        exchange=_row(exchange),
        charts=(chart_of_rates(viewer.broker.statistics, exchange, THROUGH, period),),
        periods=PERIODS,
        period=period,
        drawing=draw(vhost, exchange.name, incoming, outgoing),
        incoming=incoming,
        outgoing=outgoing,
        shown_max=BINDINGS_SHOWN_MAX,
        form=BLANK,
        may={
            "delete": configure and bool(exchange.name) and not exchange.name.startswith("amq."),
            "publish": not exchange.definition.internal
            and viewer.may("write", "exchange", vhost, exchange.name or "amq.default"),
            "bind": bool(exchange.name) and viewer.may("read", "exchange", vhost, exchange.name),
        },
    )


def _some(bindings: Any) -> list[Any]:
    return [binding for _, binding in zip(range(BINDINGS_SHOWN_MAX), bindings, strict=False)]


@router.get("/live/exchanges/{vhost}/{name}")
async def live(request: Request, viewer: ViewerHere, vhost: Segment, name: Segment) -> Response:
    """Stream the exchange's rates; the stream ends with the exchange."""
    _existing(viewer, vhost, name)

    async def frame() -> Frame:
        exchange = _existing(viewer, vhost, name)
        rates = latest_rates(viewer.broker.statistics, exchange, THROUGH)
        return {"figures": {}, "points": {"rates": rates}}

    return live_stream(request, viewer, frame)


@router.post("/exchanges/{vhost}/{name}/delete")
async def delete_exchange(
    viewer: ViewerHere, form: FormHere, vhost: Segment, name: Segment
) -> Response:
    """Delete an exchange with its bindings."""
    _existing(viewer, vhost, name)
    return await act(
        viewer,
        exchange_delete,
        vhost=vhost,
        name=name,
        if_unused=form.flag("if_unused"),
        done=f"Exchange {name} in {vhost} was deleted.",
        then="/exchanges",
        otherwise=path("exchanges", vhost, name),
    )


@router.post("/exchanges/{vhost}/{name}/publish")
async def publish(
    request: Request, viewer: ViewerHere, form: FormHere, vhost: Segment, name: Segment
) -> Response:
    """Publish one message. With scripts, the form stays and shows the result."""
    _existing(viewer, vhost, name)
    try:
        said, is_routed = await publish_written(viewer, vhost, name, form)
    except ApiError as error:
        if error.status in {401, 403}:
            raise
        said, is_routed = error.reason, False
    if "hx-request" in request.headers:
        return page(request, viewer, "published.html.j2", text=said, failed=not is_routed)
    viewer.session.tell(said, failed=not is_routed)
    return seeing(path("exchanges", vhost, name))


# -- bindings


@router.post("/bindings")
async def bind(viewer: ViewerHere, form: FormHere) -> Response:
    """Create the form's binding."""
    return await _change_binding(viewer, form, binding_declare, "Bound")


@router.post("/bindings/delete")
async def unbind(viewer: ViewerHere, form: FormHere) -> Response:
    """Delete the form's binding."""
    return await _change_binding(viewer, form, binding_delete, "Unbound")


async def _change_binding(viewer: Viewer, form: Form, operation: AnyCommand, verb: str) -> Response:
    vhost, source, destination = (form.text(name) for name in ("vhost", "source", "destination"))
    is_queue = form.text("destination_type") == "queue"
    viewer.caller.vhost(vhost)
    ends = Ends(vhost, source, "q" if is_queue else "e", destination)
    key = form.text("routing_key")
    if form.text("back") == "queue":
        back = path("queues", vhost, destination)
    else:
        back = path("exchanges", vhost, form.text("here") or source)
    await require_to_bind(viewer.caller, ends, key)
    kind = "queue" if is_queue else "exchange"
    try:
        parameters = ends.request(key, arguments_of(form))
    except ApiError as error:
        viewer.session.tell(error.reason, failed=True)
        return seeing(back)
    done = f"{verb}: {kind} {destination}, exchange {source}, routing key “{key}”."
    return await act(viewer, operation, done=done, then=back, **parameters)


def _existing(viewer: Viewer, vhost: str, name: str) -> Exchange:
    """Return an exchange that the user may see. Raises ApiError 401 and 404."""
    exchange = viewer.caller.vhost(vhost).exchanges.get("" if name == "amq.default" else name)
    if exchange is None:
        raise not_found("exchange_not_found")
    return exchange
