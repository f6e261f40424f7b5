"""Definitions of a cluster in a backup: what outlives a node by itself, in a database like its."""

import asyncio

from leveret.ports.definitions import (
    BindingDefinition,
    Definitions,
    ExchangeDefinition,
    GroupDefinition,
    Home,
    QueueDefinition,
    VhostDefinition,
)
from leveret.storage.definitions_copy import copy_definitions, durable_only, has_definitions
from leveret.storage.metadata import SqliteMetadataStore

KEPT = QueueDefinition("/", "kept", incarnation="i1")
EXCLUSIVE = QueueDefinition("/", "mine", exclusive=True, incarnation="i2", home=Home(1, 2, "c"))
TRANSIENT = QueueDefinition("/", "gone", durable=False, incarnation="i3", home=Home(1, 2))


def binding(source, destination, kind="queue"):
    return BindingDefinition("/", source, destination, kind)


DEFINITIONS = Definitions(
    vhosts=[VhostDefinition("/")],
    exchanges=[
        ExchangeDefinition("/", "x", "fanout"),
        ExchangeDefinition("/", "t", "fanout", False),
    ],
    queues=[KEPT, EXCLUSIVE, TRANSIENT],
    groups=[GroupDefinition("/", "i1", "g", "g1"), GroupDefinition("/", "i3", "g", "g2")],
    bindings=[
        binding("x", "kept"),
        binding("amq.topic", "kept"),
        binding("x", "mine"),
        binding("t", "kept"),
        binding("x", "t", "exchange"),
    ],
)


def test_what_ends_with_a_node_is_left_out():
    kept = durable_only(DEFINITIONS)
    assert [each.name for each in kept.exchanges] == ["x"]
    assert kept.queues == [KEPT]
    assert [each.incarnation for each in kept.groups] == ["g1"]
    assert kept.bindings == [binding("x", "kept"), binding("amq.topic", "kept")]
    assert kept.vhosts == DEFINITIONS.vhosts


async def test_a_copy_has_the_identity_of_the_node_and_the_definitions_of_the_cluster(tmp_path):
    tasks = []

    def spawn(work):
        tasks.append(asyncio.get_running_loop().create_task(work))

    original, made = tmp_path / "leveret.db", tmp_path / "copy.db"
    store = await SqliteMetadataStore.open(original, spawn)
    await copy_definitions(durable_only(DEFINITIONS), original, made, spawn)
    copy = await SqliteMetadataStore.open(made, spawn)
    try:
        assert copy.identity == store.identity
        assert copy.changes > store.changes
        assert (await copy.load()).queues == [KEPT]
        assert await store.is_new()
    finally:
        await copy.close()
        await store.close()
    assert has_definitions(made)
    assert not has_definitions(original)
    assert not has_definitions(tmp_path / "none.db")
    (tmp_path / "text.db").write_text("this is no database\n" * 100)
    assert not has_definitions(tmp_path / "text.db")
