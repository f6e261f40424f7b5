"""Definitions that the coordinator keeps: who may change them, and what of them is believed."""

import asyncio

import pytest

from leveret.errors import StorageError
from leveret.ports.coordination import (
    CoordinatorUnavailableError,
    KeyChange,
    NodeRegistration,
)
from leveret.ports.definitions import (
    BindingDefinition,
    GroupDefinition,
    Home,
    QueueDefinition,
    UserDefinition,
    VhostDefinition,
)
from leveret.replication.cluster_definitions import (
    ClusterDefinitions,
    decode_definition,
    definition_key,
    encode_definition,
)
from tests.memory_coordinator import MemoryEnsemble
from tests.support.waiting import eventually


@pytest.fixture
async def stores():
    """The store of the controller, and that of another node."""
    ensemble = MemoryEnsemble()
    async with asyncio.TaskGroup() as group:
        yield [
            ClusterDefinitions(
                ensemble.open(NodeRegistration(number, "", "", f"d{number}")), group.create_task
            )
            for number in (1, 2)
        ]


async def test_every_node_knows_what_the_controller_has_written(stores):
    first, second = stores
    first.put(VhostDefinition("/"))
    first.put(QueueDefinition("/", "q"))
    await first.flush()
    found = await second.load()
    assert found.vhosts == [VhostDefinition("/")]
    assert found.queues == [QueueDefinition("/", "q")]


async def test_nobody_but_the_controller_writes(stores, caplog):
    _, second = stores
    second.put(VhostDefinition("/"))
    with pytest.raises(StorageError, match="definitions cannot be written"):
        await second.flush()
    assert not second.pending
    await asyncio.sleep(0)


async def test_many_definitions_take_several_writes(stores):
    first, second = stores
    queues = [QueueDefinition("/", f"q{n:05}", arguments={"x": "y" * 1000}) for n in range(500)]
    for queue in queues:
        first.put(queue)
    await first.flush()
    assert (await second.load()).queues == queues


async def test_one_that_is_too_large_does_not_keep_the_others(stores, caplog):
    first, second = stores
    first.put(QueueDefinition("/", "large", arguments={"x": "y" * 300_000}))
    first.put(QueueDefinition("/", "small"))
    with pytest.raises(StorageError, match="cannot be written"):
        await first.flush()
    assert (await second.load()).queues == [QueueDefinition("/", "small")]
    first.remove(QueueDefinition("/", "large"))
    await first.flush()
    assert not first.pending


@pytest.mark.parametrize("name", ["-", "a/b", "a", "%2F", "ü" * 120, ""])
async def test_a_virtual_host_goes_with_all_that_is_its_own(stores, name):
    first, _ = stores
    others = [VhostDefinition(other) for other in ("b", "a-b", "A") if other != name]
    for definition in [
        *others,
        UserDefinition("u"),
        VhostDefinition(name),
        QueueDefinition(name, "q"),
        QueueDefinition("b", name),
        BindingDefinition(name, "x", "q", "queue", "k", {"a": 1}),
    ]:
        first.put(definition)
    await first.flush()
    first.put(QueueDefinition(name, "put and not written"))
    first.remove_vhost(name)
    found = await first.load()
    assert found.vhosts == sorted(others, key=lambda each: each.name)
    assert found.queues == [QueueDefinition("b", name)]
    assert found.bindings == []
    assert found.users == [UserDefinition("u")]


class Companions:
    """One key beside each queue, and a second one beside large ones."""

    def prefix_of(self, queue):
        return f"partitions/{queue.incarnation}/"

    def of_queue(self, queue, known):
        wanted = range(2 if queue.arguments else 1)
        keys = [f"{self.prefix_of(queue)}{number}" for number in wanted]
        gone = dict.fromkeys(key for key in known if key not in keys)
        return gone | {key: b"state" for key in keys if key not in set(known)}


@pytest.fixture
def first(stores):
    stores[0].companions = Companions()
    return stores[0]


def partitions(store):
    return [key.removeprefix("partitions/") for key in store._coordinator.entries.keys("part")]


async def test_companions_come_and_go_with_their_queue(first):
    for queue in (QueueDefinition("/", "q", incarnation="i"), QueueDefinition("v", "q")):
        first.put(queue)
        await first.flush()
    assert partitions(first) == ["/0", "i/0"]
    versions = [first._coordinator.entries[f"partitions/{key}"].version for key in ("/0", "i/0")]
    first.put(QueueDefinition("/", "q", arguments={"large": 1}, incarnation="i"))
    first.put(QueueDefinition("v", "q", created_ms=5))
    await first.flush()
    assert partitions(first) == ["/0", "i/0", "i/1"]
    for key, version in zip(("/0", "i/0"), versions, strict=True):  # others have changed them
        assert first._coordinator.entries[f"partitions/{key}"].version == version
    first.put(QueueDefinition("/", "q", incarnation="i"))
    first.remove_vhost("v")
    await first.flush()
    assert partitions(first) == ["i/0"]
    first.remove(QueueDefinition("/", "q", incarnation="i"))
    await first.flush()
    assert not partitions(first)


async def test_a_queue_with_another_name_keeps_its_companions(first):
    first.put(QueueDefinition("/", "old", incarnation="i"))
    first.put(QueueDefinition("/", "new", incarnation="i"))
    first.remove(QueueDefinition("/", "old", incarnation="i"))
    await first.flush()
    assert partitions(first) == ["i/0"]
    first.remove(QueueDefinition("/", "new", incarnation="i"))
    await first.flush()
    assert not partitions(first)


async def test_what_was_written_by_an_attempt_that_seemed_to_fail_is_not_written_again(first):
    """Others may have changed it since."""
    coordinator = first._coordinator
    first.put(QueueDefinition("/", "q", incarnation="i"))
    await coordinator.write([KeyChange("partitions/i/0", b"changed by others")])
    await first.flush()
    assert coordinator.entries["partitions/i/0"].value == b"changed by others"
    assert (await first.load()).queues == [QueueDefinition("/", "q", incarnation="i")]


async def test_an_attempt_that_fails_once_there_is_a_connection_again_is_repeated(
    stores, monkeypatch
):
    first, _ = stores
    write = first._coordinator.write_as_controller
    begun, goes_on = asyncio.Event(), asyncio.Event()

    async def fail_late(_changes):
        begun.set()
        await goes_on.wait()
        raise CoordinatorUnavailableError("the coordinator is away")

    monkeypatch.setattr(first._coordinator, "write_as_controller", fail_late)
    first.put(VhostDefinition("/"))
    await begun.wait()
    monkeypatch.setattr(first._coordinator, "write_as_controller", write)
    first.retry()
    goes_on.set()
    await eventually(lambda: not first.pending)
    assert (await first.load()).vhosts == [VhostDefinition("/")]


async def test_who_waits_may_be_cancelled(first):
    """A write that is under way comes to its end."""
    loop = asyncio.get_running_loop()
    first.put(QueueDefinition("/", "q"))
    waiting = [loop.create_task(first.flush()) for _ in range(2)]
    await asyncio.sleep(0)
    for each in waiting:
        each.cancel()
    await asyncio.gather(*waiting, return_exceptions=True)
    await first.flush()
    assert (await first.load()).queues == [QueueDefinition("/", "q")]


async def test_who_follows_writes_nothing_and_tells_what_it_has_changed(stores):
    first, second = stores
    told = []

    async def forward(definition, is_removal):
        told.append((definition, is_removal))

    second.is_following, second.forward = True, forward
    group = GroupDefinition("/", "i", "g", "j")
    second.put(group)
    second.remove(group)
    second.remove(QueueDefinition("/", "q"))
    second.remove_vhost("/")
    second.is_applying = True
    second.put(QueueDefinition("/", "q"))
    second.remove(group)
    assert second.pending
    await second.flush()
    assert told == [(group, False), (group, True)]
    assert not second.pending
    assert (await first.load()).queues == []


async def test_the_home_of_a_queue_is_kept(stores):
    first, second = stores
    queues = [
        QueueDefinition("/", "a", durable=False, home=Home(1, 5)),
        QueueDefinition("/", "b", exclusive=True, home=Home(2, 1, "a connection")),
    ]
    for queue in queues:
        first.put(queue)
    await first.flush()
    assert (await second.load()).queues == queues


def test_columns_of_other_releases_do_no_harm():
    key = definition_key(QueueDefinition("/", "q"))
    value = b'{"vhost":"/","name":"q","made_up":1}'
    assert decode_definition(key, value) == QueueDefinition("/", "q")
    assert decode_definition(key, encode_definition(QueueDefinition("/", "q"))).name == "q"


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("definitions/made_up/-/0", b"{}"),
        ("definitions", b"{}"),
        ("definitions/queues/-/0", b"[]"),
        ("definitions/queues/-/0", b"{}"),
        ("definitions/queues/-/0", b'{"vhost":"/","name":"q","home":[1]}'),
        ("definitions/queues/-/0", b'{"vhost":"/","name":"q","home":[1,2,3]}'),
        ("definitions/queues/-/0", b"\xff"),
        ("definitions/queues/-/0", b"[" * 100_000),
    ],
)
async def test_what_is_no_definition_is_told(stores, key, value):
    with pytest.raises(ValueError, match=f"key {key} has no definition"):
        decode_definition(key, value)
    if key.startswith("definitions/queues/"):
        first, _ = stores
        await first._coordinator.write([KeyChange(key, value)])
        with pytest.raises(StorageError, match=f"key {key} has no definition"):
            await first.load()
