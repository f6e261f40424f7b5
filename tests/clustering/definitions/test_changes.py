"""Clients change definitions on any node, and all nodes have them."""

from __future__ import annotations

import asyncio

import pytest
from pamqp import commands

from leveret.cluster.partition_state import PartitionState
from leveret.clustering.definitions.asking import ClusterChanges
from leveret.ports.definitions import PolicyDefinition, TopicPermissionDefinition
from tests.clustering.definitions.nodes import (
    ChangeTimes,
    DefinitionCluster,
    message,
)
from tests.support.waiting import eventually


@pytest.fixture
async def cluster():
    async with DefinitionCluster() as cluster:
        yield cluster


async def test_all_nodes_have_what_a_client_of_one_declares(cluster):
    client = await cluster.nodes[1].client()
    await client.declares("q", durable=True)
    declared = await client.ask(commands.Exchange.Declare(exchange="x", exchange_type="topic"))
    assert declared.name == "Exchange.DeclareOk"
    bound = await client.ask(commands.Queue.Bind(queue="q", exchange="x", routing_key="k.#"))
    assert bound.name == "Queue.BindOk"
    await cluster.agree()
    for node in cluster.nodes:
        definitions = node.vhost.definitions()
        assert [queue.name for queue in definitions.queues] == ["q"]
        assert [each.name for each in definitions.exchanges] == ["x"]
        assert [each.routing_key for each in definitions.bindings] == ["k.#"]
        assert definitions == cluster.controller.vhost.definitions()
    assert definitions.queues[0].created_by == "guest"


@pytest.mark.parametrize("number", [0, 1])
async def test_a_client_has_at_once_what_it_has_declared(cluster, number):
    """Its next method, sent together with the declaration, finds the queue."""
    client = await cluster.nodes[number].client()
    client.send(
        commands.Queue.Declare(queue="", exclusive=True),
        commands.Exchange.Declare(exchange="x", exchange_type="fanout"),
        commands.Exchange.Declare(exchange="y", exchange_type="fanout"),
        commands.Exchange.Bind(destination="x", source="y"),
        commands.Queue.Bind(queue="", exchange="x"),
        commands.Queue.Unbind(queue="", exchange="x"),
        commands.Exchange.Unbind(destination="x", source="y"),
        commands.Exchange.Delete(exchange="y"),
        commands.Queue.Delete(queue=""),
    )
    names = [(await client.next()).name.partition(".")[2] for _ in range(9)]
    expected = ["DeclareOk", "DeclareOk", "DeclareOk", "BindOk", "BindOk"]
    assert names == [*expected, "UnbindOk", "UnbindOk", "DeleteOk", "DeleteOk"]
    await cluster.agree()
    assert not cluster.nodes[2].vhost.queues
    assert "y" not in cluster.nodes[2].vhost.exchanges


@pytest.mark.parametrize("number", [0, 1])
@pytest.mark.parametrize(
    ("method", "code", "text"),
    [
        (
            commands.Queue.Declare(queue="q", durable=True, arguments={"x-max-length": 5}),
            406,
            "inequivalent arg 'x-max-length' for queue 'q' in vhost '/': received the value '5' of",
        ),
        (commands.Queue.Bind(queue="none", exchange="amq.topic"), 404, "no queue 'none'"),
        (commands.Queue.Bind(queue="q", exchange="none"), 404, "no exchange 'none'"),
        (commands.Queue.Declare(queue="amq.mine"), 403, "reserved prefix"),
        (commands.Exchange.Declare(exchange="x", exchange_type="topic"), 406, "inequivalent arg"),
        (commands.Exchange.Delete(exchange="amq.topic"), 403, "system exchange"),
        (commands.Exchange.Delete(exchange="x", if_unused=True), 406, "in use"),
        (commands.Queue.Delete(queue="locked"), 405, "RESOURCE_LOCKED"),
        (commands.Queue.Declare(queue="locked", exclusive=True), 405, "RESOURCE_LOCKED"),
        (commands.Queue.Declare(queue="q2", arguments={"x-expires": 0}), 406, "x-expires"),
    ],
)
async def test_errors_are_the_same_on_all_nodes(cluster, number, method, code, text):
    other = await cluster.nodes[2].client()
    await other.declares("q", durable=True)
    await other.ask(commands.Exchange.Declare(exchange="x", exchange_type="fanout"))
    await other.ask(commands.Queue.Bind(queue="q", exchange="x"))
    await other.declares("locked", exclusive=True)
    await cluster.agree()
    client = await cluster.nodes[number].client()
    answer = await client.ask(method)
    assert (answer.name, answer.reply_code) == ("Channel.Close", code)
    assert text in answer.reply_text
    client.send(commands.Channel.CloseOk())
    await client.open_another(2)


@pytest.mark.parametrize("number", [0, 1])
async def test_arguments_that_the_coordinator_would_not_keep_are_refused(cluster, number):
    client = await cluster.nodes[number].client()
    arguments = {"x-any": "\x01" * 30_000}
    for method in (
        commands.Queue.Declare(queue="q", arguments=arguments),
        commands.Exchange.Declare(exchange="x", exchange_type="topic", arguments=arguments),
        commands.Queue.Bind(queue="q", exchange="amq.topic", arguments=arguments),
    ):
        answer = await client.ask(method)
        assert (answer.name, answer.reply_code) == ("Channel.Close", 406)
        assert "as they are kept" in answer.reply_text
        client.send(commands.Channel.CloseOk())
        await client.open_another(1)


async def test_what_changes_nothing_is_answered_without_the_controller(cluster):
    client = await cluster.nodes[1].client()
    await client.declares("q", durable=True)
    await client.ask(commands.Queue.Bind(queue="q", exchange="amq.topic", routing_key="k"))
    before = cluster.ensemble.state.sequence
    await cluster.nodes[0].links.close()
    for method in (
        commands.Queue.Declare(queue="q", durable=True),
        commands.Queue.Bind(queue="q", exchange="amq.topic", routing_key="k"),
        commands.Queue.Unbind(queue="q", exchange="amq.topic", routing_key="other"),
        commands.Queue.Delete(queue="missing"),
        commands.Exchange.Declare(exchange="amq.topic", exchange_type="topic", durable=True),
        commands.Exchange.Delete(exchange="missing"),
    ):
        assert (await client.ask(method)).name.endswith("Ok")
    assert cluster.ensemble.state.sequence == before


@pytest.mark.parametrize("number", [0, 1])
async def test_what_changes_nothing_is_answered_while_nothing_can_be_written(cluster, number):
    """Clients declare what they use at each reconnection; what is not written yet is not told."""
    client = await cluster.nodes[number].client()
    await client.declares("q", durable=True)
    await client.ask(commands.Queue.Bind(queue="q", exchange="amq.topic", routing_key="k"))
    await client.ask(commands.Exchange.Declare(exchange="x", exchange_type="fanout"))
    await cluster.agree()
    for node in cluster.nodes:
        node.coordinator.lose_connection()
    for method in (
        commands.Queue.Declare(queue="new", durable=True),
        commands.Queue.Declare(queue="new", durable=True),
        commands.Exchange.Delete(exchange="x"),
        commands.Exchange.Delete(exchange="x"),
    ):
        refused = await cluster.nodes[number].client()
        refused.send(method)
        assert (await refused.next(0)).reply_code == 541
    for method in (
        commands.Queue.Declare(queue="q", durable=True),
        commands.Queue.Bind(queue="q", exchange="amq.topic", routing_key="k"),
        commands.Queue.Unbind(queue="q", exchange="amq.topic", routing_key="other"),
        commands.Queue.Delete(queue="missing"),
        commands.Exchange.Declare(exchange="amq.topic", exchange_type="topic", durable=True),
        commands.Exchange.Delete(exchange="missing"),
    ):
        assert (await client.ask(method)).name.endswith("Ok")
    other = commands.Queue.Declare(queue="q", durable=True, arguments={"x-max-length": 5})
    assert (await client.ask(other)).reply_code == 406
    for node in cluster.nodes:
        node.coordinator.reconnect()
    await cluster.agree()
    assert all("x" not in node.vhost.exchanges for node in cluster.nodes)


async def test_without_a_controller_clients_are_told():
    async with DefinitionCluster(2, ChangeTimes(0.2, 0.01, 0.01)) as cluster:
        client = await cluster.nodes[1].client()
        cluster.ensemble.controller = None
        cluster.nodes[0].coordinator.lose_connection()
        cluster.nodes[1].coordinator._controller = None
        client.send(commands.Queue.Declare(queue="q"))
        answer = await client.next(0)
    assert (answer.name, answer.reply_code) == ("Connection.Close", 541)
    assert "the cluster has no controller" in answer.reply_text


async def test_a_message_creates_its_queue_and_comes_into_it(cluster):
    cluster.controller.administration.let_vhost_create_queues("/", on=True)
    await cluster.agree()
    client = await cluster.nodes[1].client()
    await client.ask(commands.Confirm.Select())
    client.feed(message("made", b"body", mandatory=True))
    assert (await client.next()).name == "Basic.Ack"
    await cluster.agree()
    assert all("made" in node.vhost.queues for node in cluster.nodes)
    assert cluster.nodes[1].vhost.queues["made"].message_count == 1


# -- homes and owners


async def test_exclusive_queues_go_with_their_connection(cluster):
    first, second = await cluster.nodes[1].client(), await cluster.nodes[0].client()
    await first.declares("of the first", exclusive=True)
    await second.declares("of the second", exclusive=True)
    await cluster.agree()
    for node in cluster.nodes:
        homes = {name: queue.definition.home for name, queue in node.vhost.queues.items()}
        assert homes["of the first"][:2] == (1, 1)
        assert homes["of the first"].connection == first.connection.name
        assert homes["of the second"][:2] == (0, 1)
    await first.close()
    await eventually(lambda: all(list(n.vhost.queues) == ["of the second"] for n in cluster.nodes))
    second.transport.lose()
    await eventually(lambda: not any(node.vhost.queues for node in cluster.nodes))
    await cluster.agree()


async def test_the_name_of_an_exclusive_queue_is_free_after_its_connection(cluster):
    for _ in range(3):
        client = await cluster.nodes[1].client()
        await client.declares("mine", exclusive=True)
        await client.close()
        assert "mine" not in cluster.nodes[1].vhost.queues
    await eventually(lambda: not any(node.vhost.queues for node in cluster.nodes))


async def test_a_connection_is_closed_when_its_exclusive_queues_are_gone(cluster):
    client = await cluster.nodes[1].client()
    for name in ("one", "two"):
        await client.declares(name, exclusive=True)
    client.send(commands.Connection.Close(200, "", 0, 0), channel=0)
    assert cluster.nodes[1].vhost.queues
    assert (await client.next(0)).name == "Connection.CloseOk"
    assert not cluster.nodes[1].vhost.queues


async def test_a_client_is_told_that_it_may_go_though_nobody_deletes_its_queues(
    cluster, monkeypatch
):
    monkeypatch.setattr("leveret.amqp.connection.REMOVAL_SECONDS_MAX", 0.1)
    client = await cluster.nodes[1].client()
    await client.declares("mine", exclusive=True)

    async def never_answered(*_):
        await asyncio.Event().wait()

    monkeypatch.setattr(ClusterChanges, "ask", never_answered)
    await client.close()
    assert list(cluster.nodes[1].vhost.queues) == ["mine"]


async def test_what_lives_on_a_node_that_is_lost_goes_with_it(cluster):
    client = await cluster.nodes[1].client()
    await client.declares("exclusive", exclusive=True)
    await client.declares("transient")
    await client.declares("durable", durable=True)
    await cluster.agree()
    assert cluster.nodes[2].vhost.queues["transient"].definition.home == (1, 1, "")
    await cluster.nodes[1].stop()
    await eventually(lambda: all(list(n.vhost.queues) == ["durable"] for n in cluster.up))
    await cluster.agree()


async def test_it_goes_when_the_controller_is_lost_with_it(cluster):
    client = await cluster.nodes[0].client()
    await client.declares("transient")
    await client.declares("durable", durable=True)
    await cluster.agree()
    await cluster.nodes[0].stop()
    await eventually(lambda: all(list(n.vhost.queues) == ["durable"] for n in cluster.up))
    await cluster.agree()
    await cluster.nodes[0].start()
    await cluster.agree()
    assert list(cluster.nodes[0].vhost.queues) == ["durable"]


async def test_a_queue_whose_connection_ended_while_it_was_declared_is_removed(cluster):
    client = await cluster.nodes[1].client()
    made = []
    cluster.nodes[2].coordinator.follow(lambda _, changes: made.extend(changes))
    client.send(commands.Queue.Declare(queue="late", exclusive=True))
    client.transport.lose()
    await eventually(lambda: any("queues/" in change.key for change in made))
    await eventually(lambda: not any(node.vhost.queues for node in cluster.nodes))
    await cluster.agree()
    await eventually(lambda: not cluster.entries("definitions/queues/"))


async def test_an_auto_delete_queue_goes_with_its_last_consumer(cluster):
    client = await cluster.nodes[1].client()
    await client.declares("q", auto_delete=True)
    await client.ask(commands.Basic.Consume(queue="q", consumer_tag="c"))
    await client.ask(commands.Basic.Cancel(consumer_tag="c"))
    await eventually(lambda: not any(node.vhost.queues for node in cluster.nodes))
    await cluster.agree()


async def test_only_where_a_queue_is_used_it_can_be_unused(cluster):
    """Its expiry time goes by on all nodes, and its consumers are on one."""
    client = await cluster.nodes[1].client()
    await client.declares("transient", arguments={"x-expires": 1000})
    await client.declares("durable", durable=True, arguments={"x-expires": 1000})
    await cluster.agree()
    incarnation = cluster.nodes[0].vhost.queues["durable"].definition.incarnation
    state = PartitionState.from_bytes(
        cluster.entries(f"partitions/{incarnation}")[f"partitions/{incarnation}/0"]
    )
    others = [node for node in cluster.nodes if node.number not in {1, state.leader}]
    for node in others:
        node.stage.clock.advance(5000)
    await asyncio.sleep(0.05)
    await cluster.agree()
    assert set(others[0].vhost.queues) == {"transient", "durable"}
    await client.ask(commands.Basic.Consume(queue="transient", consumer_tag="c"))
    await client.ask(commands.Basic.Cancel(consumer_tag="c"))
    cluster.nodes[1].stage.clock.advance(5000)
    cluster.nodes[state.leader].stage.clock.advance(5000)
    await eventually(lambda: not any(node.vhost.queues for node in cluster.nodes))


async def test_conditions_of_a_deletion_hold_for_what_is_here(cluster):
    client = await cluster.nodes[1].client()
    await client.declares("q")
    await client.ask(commands.Confirm.Select())
    client.feed(message("q", b"1") + message("q", b"2"))
    await eventually(lambda: cluster.nodes[1].vhost.queues["q"].message_count == 2)
    refused = await cluster.nodes[1].client()
    answer = await refused.ask(commands.Queue.Delete(queue="q", if_empty=True))
    assert (answer.reply_code, "not empty" in answer.reply_text) == (406, True)
    deleting = await cluster.nodes[1].client()
    assert (await deleting.ask(commands.Queue.Delete(queue="q"))).message_count == 2
    await cluster.agree()
    assert not any(node.vhost.queues for node in cluster.nodes)


# -- partitions


async def test_durable_queues_have_states_of_their_partitions(cluster):
    client = await cluster.nodes[1].client()
    await client.declares("one", durable=True)
    await client.declares("four", durable=True, arguments={"x-partitions": 4})
    await client.declares("transient")
    await client.declares("exclusive", exclusive=True)
    states = {
        key: PartitionState.from_bytes(value)
        for key, value in cluster.entries("partitions/").items()
    }
    queues = cluster.nodes[1].vhost.queues
    of_one = f"partitions/{queues['one'].definition.incarnation}/0"
    expected = {of_one} | {
        f"partitions/{queues['four'].definition.incarnation}/{n}" for n in range(4)
    }
    assert set(states) == expected
    for state in states.values():
        assert len(state.replicas) == 2
        assert state.in_sync_nodes == set(state.replicas)
        assert (state.leader, state.leader_session, state.epoch) == (state.replicas[0], 1, 1)
    assert len({state.leader for state in states.values()}) == 3
    await client.ask(commands.Queue.Delete(queue="four"))
    assert set(cluster.entries("partitions/")) == {of_one}


async def test_a_queue_keeps_its_partitions_with_another_name(cluster):
    client = await cluster.nodes[1].client()
    await client.declares("old", durable=True)
    await client.ask(commands.Queue.Bind(queue="old", exchange="amq.topic", routing_key="k"))
    await cluster.agree()
    before = cluster.entries("partitions/")
    queues = [node.vhost.queues["old"] for node in cluster.nodes]
    vhost = cluster.controller.vhost
    vhost.rename_queue(vhost.queues["old"], "new")
    await cluster.agree()
    assert cluster.entries("partitions/") == before
    for node, queue in zip(cluster.nodes, queues, strict=True):
        assert node.vhost.queues["new"] is node.vhost.find_queue("old") is queue
        assert not queue.deleted
        assert [each.destination for each in node.vhost.definitions().bindings] == ["new"]
    await client.ask(commands.Queue.Delete(queue="new"))
    assert not cluster.entries("partitions/")


async def test_a_changed_layout_has_other_partitions(cluster):
    client = await cluster.nodes[1].client()
    await client.declares("q", durable=True, arguments={"x-partitions": 2})
    controller = cluster.controller
    queue = controller.vhost.queues["q"]
    changes = controller.broker.partitions
    await changes.apply(queue, changes.planned(queue, 3))
    await cluster.agree()
    assert len(cluster.entries("partitions/")) == 3
    assert all(len(node.vhost.queues["q"].partitions) == 3 for node in cluster.nodes)


async def test_a_retired_partition_goes_when_its_leader_has_nothing_left(cluster):
    """Others have no messages, and know of none."""
    client = await cluster.nodes[1].client()
    await client.declares("q", durable=True, arguments={"x-partitions": 2})
    incarnation = cluster.controller.vhost.queues["q"].definition.incarnation
    key = f"partitions/{incarnation}/1"
    state = PartitionState.from_bytes(cluster.entries(key)[key])
    leader = cluster.nodes[state.leader]
    controller = cluster.controller
    queue = controller.vhost.queues["q"]
    changes = controller.broker.partitions
    await changes.apply(queue, changes.planned(queue, 1))
    await cluster.agree()
    for node in cluster.nodes:
        if node is not leader:
            node.stage.clock.advance(2000)
    await asyncio.sleep(0.05)
    await cluster.agree()
    assert len(cluster.entries("partitions/")) == 2
    leader.stage.clock.advance(2000)
    await eventually(lambda: len(cluster.entries("partitions/")) == 1)
    await cluster.agree()
    assert all(len(node.vhost.queues["q"].partitions) == 1 for node in cluster.nodes)


async def test_a_virtual_host_goes_with_all_partitions(cluster):
    administration = cluster.controller.administration
    administration.add_vhost("v")
    await cluster.agree()
    vhost = cluster.controller.broker.vhosts["v"]
    options = {"exclusive": False, "auto_delete": False, "arguments": {}, "owner": None}
    vhost.declare_queue("q", durable=True, **options)
    vhost.bind_queue("q", "amq.topic", "k", {}, None)
    await cluster.agree()
    assert cluster.entries("partitions/")
    administration.delete_vhost("v")
    await cluster.agree()
    assert not cluster.entries("partitions/")
    assert all("v" not in node.broker.vhosts for node in cluster.nodes)


# -- administration


async def test_users_permissions_and_policies_are_everywhere(cluster):
    administration = cluster.controller.administration
    administration.add_user("u", "hash of u", ("monitoring",))
    administration.set_topic_permission(TopicPermissionDefinition("/", "u", "amq.topic", "a", "b"))
    administration.set_policy(PolicyDefinition("/", "p", "^q", {"max-length": 5}))
    client = await cluster.nodes[1].client()
    await client.declares("q", durable=True)
    await cluster.agree()
    for node in cluster.nodes:
        assert node.administration.user("u").tags == ("monitoring",)
        assert node.vhost.queues["q"].policy.policy == "p"
        assert node.administration.topic_permissions(user="u")
    administration.delete_user("u")
    administration.clear_policy("/", "p")
    await cluster.agree()
    for node in cluster.nodes:
        assert node.broker.access.user("u") is None
        assert not node.administration.topic_permissions()
        await eventually(lambda node=node: node.vhost.queues["q"].policy.policy is None)


async def test_who_follows_tells_no_events(cluster):
    client = await cluster.nodes[1].client()
    await client.declares("q", durable=True)
    await cluster.agree()
    churns = [node.broker.statistics.churn.totals() for node in cluster.nodes]
    assert [totals["queue_created"] for totals in churns] == [1, 0, 0]
    assert [totals["queue_declared"] for totals in churns] == [0, 1, 0]


async def test_dead_letter_topics_are_made_by_the_controller(cluster):
    """At-least-once dead letters wait for them."""
    client = await cluster.nodes[1].client()
    arguments = {"x-queue-type": "quorum", "x-dead-letter-topic": True}
    arguments |= {"x-dead-letter-strategy": "at-least-once", "x-overflow": "reject-publish"}
    await client.declares("q", durable=True, arguments=arguments)
    await client.ask(commands.Basic.Qos(prefetch_count=5))
    await client.ask(commands.Basic.Consume(queue="q", consumer_tag="c"))
    client.feed(message("q", b"dead"))
    delivered = await client.next()
    client.send(commands.Basic.Reject(delivered.delivery_tag, requeue=False))
    await eventually(lambda: all("q.dlq" in node.vhost.queues for node in cluster.nodes))
    await cluster.agree()
    topic = cluster.nodes[1].vhost.queues["q.dlq"]
    await eventually(lambda: topic.message_count == 1)
    assert topic.definition == cluster.controller.vhost.queues["q.dlq"].definition
    assert topic.definition.created_by == "rmq-internal"
    for node in cluster.nodes:
        node.stage.reported.clear()  # that the dead letter waits
