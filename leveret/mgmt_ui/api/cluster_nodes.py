"""/api/leveret/cluster: the nodes of a cluster, and on which of them partitions are.

    GET    …                        nodes, coordinator, and counts of partitions by what is wrong
    GET    …/partitions             each with its leader and replicas; ?problems=true: those that
                                    something is wrong with
    GET    …/moves                  those that are not done
    GET    …/links                  links of this node with the others
    POST   …/nodes/ID/add           give a node its share → {"moving": 3}
    POST   …/nodes/ID/drain         → {"moving": 3, "staying": 0}; …/undrain
    DELETE …/nodes/ID               forget a node; ?force=true gives its replicas up
    POST   …/rebalance              → {"moving": 3}
    POST   …/moves/VHOST/QUEUE      {"nodes": [2, 3], "partition": 0} → {"moving": 1}
    DELETE …/moves/VHOST/QUEUE      end its moves → {"ended": 1}
    POST   …/elections/VHOST/QUEUE  {"node": 2, "partition": 0, "unclean": false}
                                    → [{"partition": 0, "leader": 2}]

For administrators. A node by itself answers 400.
"""

from __future__ import annotations

from fastapi import Request, Response

from leveret.mgmt_ui.api.bodies import condition, flag, json_object, path_number, require_fields
from leveret.mgmt_ui.api.callers import AdministratorHere
from leveret.mgmt_ui.api.describing import body, query
from leveret.mgmt_ui.api.listing import READ, Segment, answer, done
from leveret.mgmt_ui.api.own import own_router
from leveret.mgmt_ui.api.problems import not_found
from leveret.mgmt_ui.operations.cluster import (
    cluster_add,
    cluster_cancel_moves,
    cluster_drain,
    cluster_elect,
    cluster_links,
    cluster_move,
    cluster_moves,
    cluster_partitions,
    cluster_rebalance,
    cluster_remove,
    cluster_status,
    cluster_undrain,
)

__all__ = ["router"]

MOVE = {"nodes": [2, 3], "partition": 0}
ELECTION = {"node": 2, "partition": 0, "unclean": False}

router = own_router("/cluster", tags=["cluster"])


@router.api_route("", methods=READ)
async def show(caller: AdministratorHere) -> Response:
    """The nodes, the coordinator, and how many partitions something is wrong with."""
    return answer(await caller.perform(cluster_status))


@router.api_route("/partitions", methods=READ, openapi_extra=query({"problems": True}))
async def list_partitions(caller: AdministratorHere, request: Request) -> Response:
    """The leader and the replicas of each partition."""
    problems = condition(request, "problems")
    return answer(await caller.perform(cluster_partitions, problems=problems))


@router.api_route("/moves", methods=READ)
async def list_moves(caller: AdministratorHere) -> Response:
    """The moves that are not done, with their progress."""
    return answer(await caller.perform(cluster_moves))


@router.api_route("/links", methods=READ)
async def list_links(caller: AdministratorHere) -> Response:
    """The links of the node that is asked with the others."""
    return answer(await caller.perform(cluster_links))


@router.post("/nodes/{node}/{verb}")
async def change_node(caller: AdministratorHere, node: Segment, verb: Segment) -> Response:
    """Give a node its share of the replicas, drain it, or let it have replicas again."""
    number = path_number(node, "node")
    match verb:
        case "add":
            return answer({"moving": await caller.perform(cluster_add, number=number)})
        case "drain":
            return answer(await caller.perform(cluster_drain, number=number))
        case "undrain":
            await caller.perform(cluster_undrain, number=number)
            return done()
    raise not_found()


@router.delete("/nodes/{node}", openapi_extra=query({"force": True}))
async def remove_node(caller: AdministratorHere, request: Request, node: Segment) -> Response:
    """Forget a node that is drained and stopped."""
    force = condition(request, "force")
    await caller.perform(cluster_remove, number=path_number(node, "node"), force=force)
    return done()


@router.post("/rebalance")
async def rebalance(caller: AdministratorHere) -> Response:
    """Give all nodes as many replicas and leaders."""
    return answer({"moving": await caller.perform(cluster_rebalance)})


@router.post("/moves/{vhost}/{name}", openapi_extra=body(MOVE, "nodes"))
async def move(
    caller: AdministratorHere, request: Request, vhost: Segment, name: Segment
) -> Response:
    """Move a queue, or one of its partitions, to other nodes."""
    asked = await json_object(request)
    require_fields(asked, "nodes")
    moving = await caller.perform(
        cluster_move,
        vhost=vhost,
        name=name,
        nodes=asked["nodes"],
        partition=asked.get("partition"),
    )
    return answer({"moving": moving})


@router.delete("/moves/{vhost}/{name}")
async def cancel_moves(caller: AdministratorHere, vhost: Segment, name: Segment) -> Response:
    """End the moves of a queue."""
    return answer({"ended": await caller.perform(cluster_cancel_moves, vhost=vhost, name=name)})


@router.post("/elections/{vhost}/{name}", openapi_extra=body(ELECTION))
async def elect(
    caller: AdministratorHere, request: Request, vhost: Segment, name: Segment
) -> Response:
    """Let a node lead a queue that has it, or its preferred leaders."""
    asked = await json_object(request)
    elected = await caller.perform(
        cluster_elect,
        vhost=vhost,
        name=name,
        partition=asked.get("partition"),
        number=asked.get("node"),
        unclean=flag(asked, "unclean"),
    )
    return answer(elected)
