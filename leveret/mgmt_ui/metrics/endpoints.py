"""Endpoints for scrapers.

    /metrics                   sums over all objects
    /metrics/per-object        one sample per queue and connection
    /metrics/detailed          chosen families: `?family=queue_coarse_metrics&vhost=%2F`
    /metrics/memory-breakdown  memory by kind

The management port needs a user with the tag `monitoring`. The port of the metrics needs no
authentication, as scrapers expect, and is therefore bound to this machine by default.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fastapi import APIRouter, Depends, Request, Response
from fastapi.responses import StreamingResponse

from leveret.mgmt_ui.api.callers import CallerHere, NodeHere
from leveret.mgmt_ui.metrics import cluster, consumer_groups, own, rabbitmq, traffic
from leveret.mgmt_ui.metrics.exposition import negotiated
from leveret.mgmt_ui.metrics.groups import one_by_one, summed
from leveret.mgmt_ui.metrics.reading import EVERYTHING, Scope, take_reading
from leveret.mgmt_ui.yielding import in_chunks

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Collection

    from leveret.mgmt_ui.managed import ManagedNode
    from leveret.mgmt_ui.metrics.exposition import Exposition
    from leveret.mgmt_ui.metrics.groups import MetricGroup
    from leveret.mgmt_ui.metrics.reading import Reading

__all__ = ["guarded", "public"]

READ = ["GET", "HEAD"]
GROUPS = (
    *rabbitmq.GROUPS,
    *traffic.GROUPS,
    *own.GROUPS,
    *consumer_groups.GROUPS,
    *cluster.GROUPS,
)
HISTOGRAMS = (*traffic.HISTOGRAMS, *own.HISTOGRAMS)
FAMILIES: dict[str, MetricGroup[Any]] = {
    group.name: group for group in (*GROUPS, *rabbitmq.CLUSTER)
}


async def _as_sums(reading: Reading, exposition: Exposition) -> AsyncIterator[str]:
    for group in (*_identity(reading, "aggregated"), *GROUPS):
        tell = one_by_one(group, reading, exposition, group.prefix)
        async for piece in tell if group.always_labelled else summed(group, reading, exposition):
            yield piece
    for histogram in HISTOGRAMS:
        yield histogram.tell(reading, exposition)


async def _per_object(reading: Reading, exposition: Exposition) -> AsyncIterator[str]:
    for group in (*_identity(reading, "per-object"), *GROUPS):
        if group.only_named:
            continue
        async for piece in one_by_one(group, reading, exposition, group.prefix):
            yield piece
    for histogram in HISTOGRAMS:
        yield histogram.tell(reading, exposition)


async def _detailed(
    reading: Reading, exposition: Exposition, families: Collection[str]
) -> AsyncIterator[str]:
    for name, group in FAMILIES.items():
        # As in RabbitMQ: the only metric of the one family is the first of the other.
        if name not in families or (name == "queue_consumer_count" and "queue_metrics" in families):
            continue
        prefix = group.prefix
        if group not in rabbitmq.CLUSTER or name == "queue_consumer_count":
            prefix += "detailed_"
        async for piece in one_by_one(group, reading, exposition, prefix):
            yield piece


async def _memory(reading: Reading, exposition: Exposition) -> AsyncIterator[str]:
    for group in (*_identity(reading, "memory-breakdown"), own.MEMORY):
        async for piece in one_by_one(group, reading, exposition, group.prefix):
            yield piece


def _identity(reading: Reading, endpoint: str) -> tuple[MetricGroup[Any], ...]:
    return rabbitmq.build_info(reading), rabbitmq.identity_info(reading, endpoint)


async def aggregated(node: NodeHere, request: Request) -> Response:
    """Serve `/metrics`."""
    return await _answer(node, request, _as_sums)


async def per_object(node: NodeHere, request: Request) -> Response:
    """Serve `/metrics/per-object`."""
    return await _answer(node, request, _per_object)


async def detailed(node: NodeHere, request: Request) -> Response:
    """Serve `/metrics/detailed`; `family`, `vhost` and `queue` may be repeated."""
    asked = request.query_params
    families = frozenset(asked.getlist("family"))
    scope = Scope(_chosen(asked.getlist("vhost")), _chosen(asked.getlist("queue")))

    def tell(reading: Reading, exposition: Exposition) -> AsyncIterator[str]:
        return _detailed(reading, exposition, families)

    return await _answer(node, request, tell, scope)


async def memory_breakdown(node: NodeHere, request: Request) -> Response:
    """Serve `/metrics/memory-breakdown`."""
    return await _answer(node, request, _memory)


def _chosen(names: list[str]) -> frozenset[str] | None:
    return frozenset(names) if names else None


async def _answer(
    node: ManagedNode,
    request: Request,
    tell: Any,
    scope: Scope = EVERYTHING,
) -> Response:
    exposition = negotiated(request.headers.get("accept", ""))
    reading = await take_reading(node, scope)
    pieces = in_chunks(tell(reading, exposition), exposition.end())
    return StreamingResponse(
        pieces,
        headers={"cache-control": "no-cache", "content-type": exposition.media_type},
    )


async def _require_monitor(caller: CallerHere) -> None:
    caller.require_monitor()


def _router(**options: Any) -> APIRouter:
    router = APIRouter(prefix="/metrics", **options)
    router.add_api_route("", aggregated, methods=READ)
    router.add_api_route("/per-object", per_object, methods=READ)
    router.add_api_route("/detailed", detailed, methods=READ)
    router.add_api_route("/memory-breakdown", memory_breakdown, methods=READ)
    return router


public = _router()  # for a port of their own
guarded = _router(dependencies=[Depends(_require_monitor)])  # beside the HTTP API
