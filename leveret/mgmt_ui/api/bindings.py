"""/api/bindings."""

from __future__ import annotations

from itertools import chain
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple
from urllib.parse import quote, unquote

from fastapi import Depends, Request, Response

from leveret.mgmt_ui.api import views
from leveret.mgmt_ui.api.bodies import json_object, table, text
from leveret.mgmt_ui.api.callers import CallerHere
from leveret.mgmt_ui.api.listing import (
    READ,
    ObjectKind,
    QueryHere,
    Segment,
    answer,
    listed,
    vhosts_of,
)
from leveret.mgmt_ui.api.problems import not_found
from leveret.mgmt_ui.operations.topology import binding_declare, binding_delete
from leveret.mgmt_ui.routes import LazyRouter
from leveret.mgmt_ui.yielding import in_yielding_chunks, picked

if TYPE_CHECKING:
    from leveret.core.routing.bindings import Binding
    from leveret.mgmt_ui.api.callers import Caller


__all__ = ["BINDINGS", "Ends", "require_to_bind", "router"]

KINDS: dict[str, Literal["queue", "exchange"]] = {"q": "queue", "e": "exchange"}
BETWEEN = "/api/bindings/{vhost}/e/{source}/{kind}/{destination}"

router = LazyRouter()

BINDINGS: ObjectKind[Binding] = ObjectKind(
    lambda binding: (
        binding.definition.vhost,
        binding.definition.source,
        binding.definition.destination_type,
        binding.definition.destination,
        binding.definition.routing_key,
    ),
    views.binding_row,
    ("vhost", "source", "destination_type", "destination", "routing_key"),
)


@router.api_route("/api/bindings", methods=READ)
@router.api_route("/api/bindings/{vhost}", methods=READ)
async def list_bindings(
    caller: CallerHere, query: QueryHere, vhost: Segment | None = None
) -> Response:
    """Bindings to queues and exchanges, those of the default exchange included."""
    hosts = vhosts_of(caller, vhost)
    sources = list(chain.from_iterable(host.exchanges.values() for host in hosts))
    found: list[Binding] = []
    async for part in in_yielding_chunks(sources):
        found += chain.from_iterable(source.outgoing.values() for source in part)
    return await listed(found, BINDINGS, query)


# -- between one source and one destination


class Ends(NamedTuple):
    """Ends of bindings as given in a path; `kind` is `q` or `e`, the type of the destination."""

    vhost: str
    source: str
    kind: str
    destination: str

    @property
    def destination_type(self) -> Literal["queue", "exchange"]:
        """Destination type in AMQP's words. Raises ApiError 404."""
        if self.kind not in KINDS:
            raise not_found()
        return KINDS[self.kind]

    def request(self, routing_key: str, arguments: dict[str, Any]) -> dict[str, Any]:
        """Return the parameters of an operation on a binding between these ends."""
        return {
            "vhost": self.vhost,
            "source": self.source,
            "destination": self.destination,
            "destination_type": self.destination_type,
            "routing_key": routing_key,
            "arguments": arguments,
        }


async def _ends(vhost: Segment, source: Segment, kind: Segment, destination: Segment) -> Ends:
    return Ends(vhost, source, kind, destination)


EndsHere = Annotated[Ends, Depends(_ends)]


@router.api_route(BETWEEN, methods=READ)
async def list_between(caller: CallerHere, query: QueryHere, ends: EndsHere) -> Response:
    """The bindings from an exchange to a queue (`q`) or an exchange (`e`)."""
    return await listed(await _between(caller, ends), BINDINGS, query)


@router.post(BETWEEN)
async def bind(caller: CallerHere, request: Request, ends: EndsHere) -> Response:
    """Bind; the answer's `location` is the path of the binding."""
    await _between(caller, ends)
    asked = await json_object(request)
    key, arguments = text(asked, "routing_key", ""), table(asked, "arguments")
    await require_to_bind(caller, ends, key)
    await caller.perform(binding_declare, **ends.request(key, arguments))
    place = f"{quote(ends.destination, safe='')}/{views.properties_key(key, arguments)}"
    return Response(status_code=201, headers={"location": place})


@router.api_route(f"{BETWEEN}/{{properties}}", methods=READ)
async def show_binding(caller: CallerHere, ends: EndsHere, properties: str) -> Response:
    """One binding, by its `properties_key`."""
    return answer(views.binding_row(await _one(caller, ends, properties)))


@router.delete(f"{BETWEEN}/{{properties}}")
async def unbind(caller: CallerHere, ends: EndsHere, properties: str) -> Response:
    """Delete a binding."""
    binding = (await _one(caller, ends, properties)).definition
    await require_to_bind(caller, ends, binding.routing_key)
    arguments = views.plain(binding.arguments)
    await caller.perform(binding_delete, **ends.request(binding.routing_key, arguments))
    return Response(status_code=204)


async def _between(caller: Caller, ends: Ends) -> list[Binding]:
    """Return the bindings between the ends of a path, which must exist. Raises ApiError 404."""
    host = caller.vhost(ends.vhost)
    exchange = host.exchanges.get("" if ends.source == "amq.default" else ends.source)
    type_ = ends.destination_type
    held = ends.destination in (host.queues if type_ == "queue" else host.exchanges)
    if exchange is None or not held:
        raise not_found()

    def leads_there(binding: Binding) -> bool:
        definition = binding.definition
        return (definition.destination, definition.destination_type) == (ends.destination, type_)

    return await picked(list(exchange.outgoing.values()), leads_there)


async def _one(caller: Caller, ends: Ends, properties: str) -> Binding:
    """Return the binding of a path. Raises ApiError 404.

    Clients encode the key in different ways, so it is compared as sent and decoded.
    """
    wanted = {properties, unquote(properties)}
    for binding in await _between(caller, ends):
        definition = binding.definition
        key = views.properties_key(definition.routing_key, definition.arguments)
        if not wanted.isdisjoint({key, unquote(key)}):
            return binding
    raise not_found()


async def require_to_bind(caller: Caller, ends: Ends, key: str) -> None:
    """Require the permissions to bind or unbind, as for AMQP clients. Raises ApiError 401."""
    await caller.require(ends.vhost, ends.destination_type, ends.destination, "write")
    await caller.require(ends.vhost, "exchange", ends.source, "read")
    await caller.require_topic(ends.vhost, ends.source, key, "read")
    if ends.destination_type == "queue":
        caller.require_shared(ends.vhost, ends.destination)
