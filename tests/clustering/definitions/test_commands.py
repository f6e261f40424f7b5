"""Administrators use any node, and the controller performs what changes definitions."""

from __future__ import annotations

import json

import pytest

from leveret.clustering.definitions.commands import ClusterCommands
from leveret.links.errors import PeerRefusedError
from leveret.mgmt_ui.operations.dispatcher import perform
from leveret.ports.audit import Actor, Way
from leveret.ports.link_kinds import RUN_COMMAND
from tests.clustering.definitions.nodes import DefinitionCluster
from tests.support.waiting import eventually

ACTOR = Actor("admin", "", Way.COMMAND_LINE)
DECLARED = {
    "vhost": "/",
    "name": "q",
    "durable": True,
    "auto_delete": False,
    "arguments": {"x-max-length": 5},
}


@pytest.fixture
async def cluster():
    async with DefinitionCluster() as cluster:
        yield cluster


async def ask(node, operation, **parameters):
    return await perform(node.context, {"operation": operation, "parameters": parameters}, ACTOR)


@pytest.mark.parametrize("number", [0, 1])
async def test_a_command_is_answered_once_its_effect_is_here(cluster, number):
    node = cluster.nodes[number]
    assert (await ask(node, "queue.declare", **DECLARED)) == {"ok": True, "result": "q"}
    assert node.vhost.queues["q"].definition.created_by == "admin"
    answer = await ask(
        node,
        "policy.set",
        vhost="/",
        name="p",
        pattern="^q",
        definition={"expires": 1000_000},
        priority=0,
        apply_to="all",
        operator=False,
    )
    assert answer["ok"], answer
    assert node.administration.policies.select(operator=False)
    await cluster.agree()
    for each in cluster.nodes:
        await eventually(lambda each=each: each.vhost.queues["q"].policy.policy == "p")


@pytest.mark.parametrize("number", [0, 1])
@pytest.mark.parametrize(
    ("operation", "parameters", "code"),
    [
        ("vhost.delete", {"name": "none"}, "not_found"),
        ("queue.declare", {**DECLARED, "name": "amq.q"}, "forbidden"),
        ("queue.declare", {**DECLARED, "arguments": {"x-max-length": -1}}, "invalid"),
        ("queue.declare", {"vhost": "/"}, "invalid"),
    ],
)
async def test_refusals_are_the_same_on_all_nodes(cluster, number, operation, parameters, code):
    answer = await ask(cluster.nodes[number], operation, **parameters)
    assert (answer["ok"], answer["error"]) == (False, code)


async def test_what_only_looks_is_answered_by_the_node_that_is_asked(cluster):
    await cluster.controller.links.close()
    answer = await ask(cluster.nodes[1], "vhost.list")
    assert [vhost["name"] for vhost in answer["result"]] == ["/"]


async def test_without_a_controller_it_is_refused(cluster):
    node = cluster.nodes[1]
    cluster.ensemble.controller = None
    cluster.nodes[0].coordinator.lose_connection()
    node.coordinator._controller = None
    commands = ClusterCommands(node.shared.role, node.coordinator, wait_seconds_max=0.05)
    answer = await commands.perform(cluster.command("vhost.add", name="v"))
    assert "the cluster has no controller" in answer["explanation"]


async def test_a_command_is_not_repeated_that_may_have_been_performed(cluster):
    performed = []

    async def break_down(command):
        performed.append(command)
        await cluster.controller.links.close()
        return {"ok": True, "result": None}

    cluster.controller.shared.commands.perform_here = break_down
    answer = await ask(cluster.nodes[1], "vhost.add", name="v", description="", tags=[])
    assert not answer["ok"], answer
    assert "may have performed the command" in answer["explanation"]
    assert len(performed) == 1


@pytest.mark.parametrize(
    "payload",
    [b"", b"[]", b"{}", b"[" * 100_000, json.dumps({"command": 1, "values": {}}).encode()],
)
async def test_what_is_no_command_is_refused(cluster, payload):
    peer = cluster.nodes[1].links.peer(0)
    with pytest.raises(PeerRefusedError):
        await peer.request(RUN_COMMAND, payload, timeout_s=60)


async def test_an_unknown_command_is_refused(cluster):
    answer = await cluster.nodes[1].shared.commands.perform(cluster.command("made.up"))
    assert answer["error"] == "invalid"
