"""Controllers come and go: nobody keeps what was not written, nobody misses what was."""

from __future__ import annotations

import asyncio
import random

import pytest
from pamqp import commands

from leveret.errors import StorageError
from leveret.ports.coordination import KeyChange
from leveret.ports.definition_changes import DeclareQueue
from leveret.ports.definitions import (
    BindingDefinition,
    ExchangeDefinition,
    GroupDefinition,
    ParameterDefinition,
    PolicyDefinition,
    QueueDefinition,
)
from leveret.replication.cluster_definitions import definition_key, encode_definition
from tests.clustering.definitions.nodes import ChangeTimes, DefinitionCluster
from tests.clustering.definitions.test_commands import DECLARED, ask
from tests.support.waiting import eventually

QUICKLY = ChangeTimes(answer_seconds_max=0.3, retry_seconds=0.01, removal_retry_seconds=0.01)


@pytest.fixture
async def cluster():
    async with DefinitionCluster() as cluster:
        yield cluster


def values(node):
    return {key: encode_definition(each) for key, each in node.present().items()}


async def all_agree(cluster):
    """Compare what all nodes have, value by value, with what the coordinator has."""
    await cluster.agree()
    wanted = cluster.entries("definitions/")
    for node in cluster.up:
        await eventually(lambda node=node: values(node) == wanted)
    first, *others = [shown(node) for node in cluster.up]
    assert all(other == first for other in others)


def shown(node):
    """Return what is exported of all virtual hosts; equal bindings are in any order."""
    definitions = [vhost.definitions() for _, vhost in sorted(node.broker.vhosts.items())]
    return [
        (each.exchanges, each.queues, sorted(each.bindings, key=definition_key))
        for each in definitions
    ]


async def test_another_controller_goes_on(cluster):
    client = await cluster.nodes[2].client()
    await client.declares("before", durable=True)
    await cluster.nodes[0].stop()
    await client.declares("after", durable=True)
    assert cluster.controller.number == 1
    await all_agree(cluster)
    await cluster.nodes[0].start()
    await all_agree(cluster)
    assert set(cluster.nodes[0].vhost.queues) == {"before", "after"}


async def test_a_deposed_controller_forgets_what_it_could_not_write(cluster):
    deposed = cluster.nodes[0]
    vhost = deposed.vhost
    options = {"durable": True, "exclusive": False, "auto_delete": False, "owner": None}
    vhost.declare_queue("kept", arguments={}, **options)
    vhost.declare_queue("changed elsewhere", arguments={}, **options)
    vhost.bind_queue("changed elsewhere", "amq.topic", "k", {}, None)
    await cluster.agree()
    deposed.coordinator.lose_connection()
    vhost.declare_queue("lost", arguments={}, **options)
    vhost.bind_queue("kept", "amq.topic", "lost", {}, None)
    deposed.broker.drop_queue(vhost, vhost.queues["kept"])
    deposed.administration.set_policy(PolicyDefinition("/", "lost", "", {"max-length": 5}))
    with pytest.raises(StorageError):
        await deposed.store.flush()
    assert deposed.store.pending
    deposed.coordinator.expire()
    await eventually(lambda: cluster.nodes[1].shared.role.is_controlling)
    other = cluster.nodes[1].vhost
    cluster.nodes[1].broker.drop_queue(other, other.queues["changed elsewhere"])
    other.declare_queue("changed elsewhere", arguments={"x-max-length": 3}, **options)
    other.bind_queue("changed elsewhere", "amq.topic", "k", {}, None)
    await cluster.nodes[1].store.flush()
    deposed.coordinator.reconnect()
    await all_agree(cluster)
    assert set(deposed.vhost.queues) == {"kept", "changed elsewhere"}
    changed = deposed.vhost.queues["changed elsewhere"]
    assert changed.definition.arguments == {"x-max-length": 3}
    assert not deposed.store.pending
    assert not deposed.administration.policies.select(operator=False)


async def test_a_deposed_controller_does_not_tell_clients_of_what_it_could_not_write(cluster):
    deposed = cluster.nodes[0]
    deposed.coordinator.lose_connection()
    options = {"durable": True, "exclusive": False, "auto_delete": False, "owner": None}
    for number in range(500):  # more than it compares in one turn
        deposed.vhost.declare_queue(f"q{number}", arguments={}, **options)
    with pytest.raises(StorageError):
        await deposed.store.flush()
    deposed.coordinator.expire()
    deposed.coordinator.reconnect()
    assert "q499" in deposed.vhost.queues
    outcomes = []
    asking = deposed.shared.changes.make(DeclareQueue("/", "q499"), None, outcomes.append)
    assert not outcomes
    await asking
    await all_agree(cluster)
    assert [outcome.name for outcome in outcomes] == ["q499"]
    assert [set(node.vhost.queues) for node in cluster.nodes] == [{"q499"}] * 3


async def test_a_controller_without_a_coordinator_writes_as_soon_as_it_is_back(cluster):
    controller = cluster.nodes[0]
    controller.coordinator.lose_connection()
    controller.administration.add_user("u", "hash of u")
    with pytest.raises(StorageError):
        await controller.store.flush()
    controller.coordinator.reconnect()
    await all_agree(cluster)
    assert all(node.broker.access.user("u") for node in cluster.nodes)


async def test_a_client_of_a_deposed_controller_is_answered_by_the_next(cluster):
    client = await cluster.nodes[0].client()
    cluster.ensemble.controller = None
    cluster.ensemble.registered = dict(reversed(cluster.ensemble.registered.items()))
    client.send(commands.Queue.Declare(queue="q", durable=True))
    cluster.ensemble.elect()
    assert (await client.next()).name == "Queue.DeclareOk"
    assert not cluster.nodes[0].shared.role.is_controlling
    await all_agree(cluster)
    assert "q" in cluster.nodes[0].vhost.queues


async def test_a_client_is_not_answered_for_changes_of_others(cluster):
    """Its own are written, whatever becomes of those that came after."""
    controller = cluster.controller
    client = await controller.client()
    await client.declares("q", durable=True)
    controller.coordinator.lose_connection()
    controller.administration.add_user("u", "hash of u")
    assert controller.store.pending
    deleted = await client.ask(commands.Queue.Delete(queue="missing"))
    assert deleted.name == "Queue.DeleteOk"
    controller.coordinator.reconnect()
    await all_agree(cluster)


async def test_a_node_that_lagged_has_the_difference(cluster):
    lagging = cluster.nodes[2]
    client = await cluster.nodes[1].client()
    await client.declares("gone", durable=True)
    await client.declares("renewed", durable=True)
    await client.ask(commands.Queue.Bind(queue="renewed", exchange="amq.topic", routing_key="k"))
    await cluster.agree()
    lagging.coordinator.lose_connection()
    await client.ask(commands.Queue.Delete(queue="gone"))
    await client.ask(commands.Queue.Delete(queue="renewed"))
    await client.declares("renewed", durable=True)
    await client.ask(commands.Queue.Bind(queue="renewed", exchange="amq.topic", routing_key="k"))
    await client.declares("new", durable=True)
    lagging.coordinator.reconnect()
    await all_agree(cluster)
    assert set(lagging.vhost.queues) == {"renewed", "new"}
    assert len(lagging.vhost.definitions().bindings) == 1


async def test_what_could_not_be_opened_is_tried_again(cluster):
    node, failing = cluster.nodes[2], []
    opens = node.stage.topics.open

    def fail(*arguments, **options):
        failing.append(arguments)
        raise StorageError("no space")

    node.stage.topics.open = fail
    client = await cluster.nodes[1].client()
    await client.declares("q", durable=True)
    await eventually(lambda: bool(failing))
    node.stage.topics.open = opens
    await eventually(lambda: bool(node.stage.reported))
    assert "q" not in node.vhost.queues
    node.stage.reported.clear()
    node.stage.clock.advance(5000)
    await all_agree(cluster)


async def test_a_binding_may_be_written_before_its_ends(cluster):
    """One flush may take several writes, and what is redefined comes in the last one."""
    coordinator = cluster.controller.coordinator
    queue = QueueDefinition("/", "q", incarnation="made elsewhere")
    exchange = ExchangeDefinition("/", "x", "topic")
    bindings = [
        BindingDefinition("/", source, "q", "queue", key)
        for source, key in (("x", "a"), ("amq.topic", "b"), ("amq.topic", "c"))
    ]
    for each in (*bindings, queue, exchange):
        if each is queue:
            await coordinator.write([KeyChange(definition_key(bindings[2]), None)])
        await coordinator.write([KeyChange(definition_key(each), encode_definition(each))])
    for node in cluster.nodes[1:]:
        await eventually(lambda node=node: len(node.vhost.definitions().bindings) == 2)
        assert not node.shared.role._dangling
    renewed = QueueDefinition("/", "q", incarnation="made anew")
    await coordinator.write([KeyChange(definition_key(queue), encode_definition(renewed))])
    for node in cluster.nodes[1:]:
        await eventually(lambda node=node: node.vhost.definitions().queues == [renewed])
        assert len(node.vhost.definitions().bindings) == 2
    assert not cluster.entries("partitions/")
    await cluster.controller.stop()
    await all_agree(cluster)
    # What another controller has left undone is done by the next one.
    await eventually(lambda: list(cluster.entries("partitions/")) == ["partitions/made anew/0"])


async def test_who_follows_lets_nothing_go_by_itself(cluster):
    """A node that lagged sees that the first binding is gone before it sees the second one."""
    lagging = cluster.nodes[2]
    client = await cluster.nodes[1].client()
    await client.declares("q", durable=True)
    await client.ask(commands.Exchange.Declare(0, "x", "topic", auto_delete=True))
    await client.ask(commands.Queue.Bind(0, "q", "x", "first"))
    await cluster.agree()
    lagging.coordinator.lose_connection()
    await client.ask(commands.Queue.Bind(0, "q", "x", "second"))
    await client.ask(commands.Queue.Unbind(0, "q", "x", "first"))
    lagging.coordinator.reconnect()
    await all_agree(cluster)
    assert [each.routing_key for each in lagging.vhost.definitions().bindings] == ["second"]
    await client.ask(commands.Queue.Unbind(0, "q", "x", "second"))
    await all_agree(cluster)
    assert not any("x" in node.vhost.exchanges for node in cluster.nodes)


async def test_a_node_is_answered_only_when_it_has_the_change_itself():
    async with DefinitionCluster(2, QUICKLY) as cluster:
        client = await cluster.nodes[1].client()
        cluster.ensemble.delays = True
        client.send(commands.Queue.Declare(queue="q", durable=True))
        await eventually(lambda: "q" in cluster.nodes[0].vhost.queues)
        await asyncio.sleep(0.05)
        client._receive()
        assert not client.frames
        cluster.nodes[1].coordinator.deliver()
        assert (await client.next()).name == "Queue.DeclareOk"
        cluster.ensemble.delays = False


async def test_what_cannot_be_written_is_undone(cluster):
    """A definition may be too large for the coordinator, which only that tells."""
    controller = cluster.controller
    huge = {"value": "x" * 300_000}
    controller.administration.set_parameter(
        ParameterDefinition("/", "federation-upstream", "s", huge)
    )
    with pytest.raises(StorageError, match="cannot be written"):
        await controller.store.flush()
    assert not controller.store.pending
    await all_agree(cluster)
    assert controller.shared.role.is_controlling
    assert not controller.administration.parameters.select()


async def test_what_is_no_definition_is_left_out(cluster, caplog):
    key = definition_key(QueueDefinition("/", "q"))
    await cluster.nodes[0].coordinator.write([KeyChange(key, b"{")])
    await eventually(lambda: f"key {key} has no definition" in caplog.text)
    client = await cluster.nodes[1].client()
    await client.declares("other", durable=True)
    await cluster.nodes[0].coordinator.write([KeyChange(key, None)])
    await all_agree(cluster)


async def test_groups_are_told_to_the_controller(cluster):
    client = await cluster.nodes[1].client()
    await client.declares("t", durable=True, arguments={"x-retention": "1d"})
    node = cluster.nodes[1]
    queue = node.vhost.queues["t"]
    group = node.broker.groups.create(queue, "g", {0: 0})
    await node.store.flush()
    await all_agree(cluster)
    wanted = [group.group]
    assert [each.broker.groups.present() for each in cluster.nodes] == [wanted] * 3
    node.broker.groups.delete(group)
    await node.store.flush()
    await all_agree(cluster)
    assert not any(each.broker.groups.present() for each in cluster.nodes)


async def test_what_a_node_must_not_change_by_itself_is_undone(cluster):
    node = cluster.nodes[1]
    node.administration.add_user("stray", "hash")
    with pytest.raises(StorageError, match="cannot change UserDefinition"):
        await node.store.flush()
    await all_agree(cluster)
    assert node.broker.access.user("stray") is None


async def test_a_group_of_a_queue_that_is_gone_is_refused(cluster):
    node = cluster.nodes[1]
    node.store.put(GroupDefinition("no vhost", "i", "g", "j"))
    with pytest.raises(StorageError, match="no vhost"):
        await node.store.flush()


# -- at random


class RandomCluster:
    """Clients and administrators of a cluster whose nodes come and go."""

    def __init__(self, cluster, seed):
        self.cluster = cluster
        self.random = random.Random(seed)
        self.clients = {}

    def name(self):
        return self.random.choice("abcd")

    async def client(self, node):
        client = self.clients.get(node)
        if client is None or client.transport.closed or not client.connection.is_open:
            client = self.clients[node] = await node.client()
        return client

    async def ask(self, method):
        node = self.random.choice(self.cluster.up)
        if "/" not in node.broker.vhosts:
            return
        client = await self.client(node)
        client.send(method)
        await eventually(lambda: client._receive() or bool(client.frames))
        _, answer = client.frames.pop(0)
        if not answer.name.endswith("Ok"):
            assert answer.reply_code in {404, 405, 406, 541}, answer.reply_text
            del self.clients[node]
            client.transport.lose()

    async def step(self):
        what = self.random.choice(
            [
                *((self.declare, self.bind) * 4),
                *(self.delete, self.unbind, self.lose),
                *(self.administer, self.cut_off, self.restart),
            ]
        )
        await what()

    async def declare(self):
        flags = {flag: self.random.random() < 0.3 for flag in ("exclusive", "auto_delete")}
        durable = self.random.random() < 0.6
        if self.random.random() < 0.3:
            kind = self.random.choice(["fanout", "topic"])
            await self.ask(
                commands.Exchange.Declare(
                    exchange=self.name(),
                    exchange_type=kind,
                    durable=durable,
                    auto_delete=flags["auto_delete"],
                )
            )
        else:
            arguments = {"x-partitions": 2} if self.random.random() < 0.2 else {}
            await self.ask(
                commands.Queue.Declare(
                    queue=self.name(), durable=durable, arguments=arguments, **flags
                )
            )

    async def delete(self):
        kind = self.random.choice([commands.Queue.Delete, commands.Exchange.Delete])
        await self.ask(kind(0, self.name()))

    async def bind(self):
        exchange, key = self.random.choice(["amq.topic", self.name()]), self.name()
        if self.random.random() < 0.2:
            await self.ask(commands.Exchange.Bind(0, self.name(), exchange, key))
        else:
            await self.ask(commands.Queue.Bind(0, self.name(), exchange, key))

    async def unbind(self):
        exchange = self.random.choice(["amq.topic", self.name()])
        await self.ask(commands.Queue.Unbind(0, self.name(), exchange, self.name()))

    async def lose(self):
        """Lose a client's connection."""
        if self.clients:
            node = self.random.choice(sorted(self.clients, key=lambda node: node.number))
            self.clients.pop(node).transport.lose()

    async def administer(self):
        node = self.random.choice(self.cluster.up)
        name, policy = self.name(), {"vhost": "/", "name": self.name()}
        operation, parameters = self.random.choice(
            [
                ("user.put", {"name": name, "password": name, "tags": [], "limits": {}}),
                ("user.delete", {"name": name}),
                ("queue.declare", {**DECLARED, "name": name}),
                ("queue.rename", {"vhost": "/", "name": name, "new_name": self.name()}),
                ("queue.pause", {"vhost": "/", "name": name, "publishing": False}),
                ("queue.resume", {"vhost": "/", "name": name}),
                ("vhost.add", {"name": name, "description": "", "tags": []}),
                ("vhost.delete", {"name": name}),
                (
                    "policy.set",
                    {
                        **policy,
                        "pattern": name,
                        "definition": {"max-length": self.random.randrange(9)},
                        "priority": 0,
                        "apply_to": "all",
                        "operator": False,
                    },
                ),
                ("policy.clear", {**policy, "operator": False}),
            ]
        )
        answer = await ask(node, operation, **parameters)
        codes = {"not_found", "locked", "invalid", "already_exists", "storage"}
        assert answer["ok"] or answer["error"] in codes, answer

    async def cut_off(self):
        """Cut a node off the coordinator for a while; its session may expire."""
        node = self.random.choice(self.cluster.up)
        node.coordinator.lose_connection()
        for _ in range(self.random.randrange(3)):
            await self.declare()
        if self.random.random() < 0.6:
            node.coordinator.expire()
            for _ in range(self.random.randrange(3)):
                await self.declare()
        node.coordinator.reconnect()

    async def restart(self):
        node = self.random.choice(self.cluster.nodes)
        self.clients.pop(node, None)
        await node.stop()
        for _ in range(self.random.randrange(2)):
            await self.declare()
        await node.start()


@pytest.mark.parametrize("seed", range(8))
async def test_all_nodes_have_the_same_definitions_after_all(seed):
    async with DefinitionCluster(3, QUICKLY) as cluster:
        acting = RandomCluster(cluster, seed)
        for _ in range(40):
            await acting.step()
        await all_agree(cluster)
        owned = {node.number: node.coordinator.session for node in cluster.nodes}
        partitions = set()
        for definition in cluster.nodes[0].present().values():
            if isinstance(definition, QueueDefinition):
                home = definition.home
                assert home is None or owned[home.node] == home.session
                if home is None:
                    partitions.add(definition.incarnation)
        held = {key.split("/")[1] for key in cluster.entries("partitions/")}
        assert held == partitions
