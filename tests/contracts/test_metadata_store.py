"""Contract of every MetadataStore, whatever it is made of."""

import asyncio
from contextlib import asynccontextmanager
from dataclasses import fields, replace
from datetime import UTC, datetime
from decimal import Decimal
from itertools import count

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from leveret.ports.definitions import (
    BindingDefinition,
    Definitions,
    ExchangeDefinition,
    GlobalParameterDefinition,
    ParameterDefinition,
    Paused,
    PermissionDefinition,
    PolicyDefinition,
    QueueDefinition,
    TopicPermissionDefinition,
    UserDefinition,
    VhostDefinition,
)
from leveret.storage.metadata import SqliteMetadataStore
from tests.cluster.definitions import definitions_shared
from tests.memory_metadata import MemoryMetadataStore
from tests.support.examples import examples

ARGUMENTS = {
    "text": "ü\0",
    "number": -(2**62),
    "fraction": 0.1,
    "yes": True,
    "one": 1,
    "nothing": None,
    "bytes": b"\x00\xff",
    "decimal": Decimal("1.50"),
    "time": datetime(2030, 1, 31, 12, tzinfo=UTC),
    "list": [1, b"2", {"three": [Decimal(3)]}],
    "table": {"bytes": "AA==", "table": {"table": {}}, "decimal": "no"},
}
ONE_OF_EACH = [
    VhostDefinition("/", "the first", ("a", "b"), "quorum", {"max-queues": 0}, True),
    UserDefinition("guest", "$argon2id$…", ("administrator",), {"max-channels": 3}),
    PermissionDefinition("/", "guest", ".*", "^a", ""),
    TopicPermissionDefinition("/", "guest", "x", "^{username}", ".*"),
    ParameterDefinition("/", "shovel", "s", {"ack-mode": None, "uris": ["a", 1, 0.5, {}]}),
    GlobalParameterDefinition("cluster_name", "c"),
    PolicyDefinition("/", "p", "^a", {"max-length": 5}, -1, "queues"),
    PolicyDefinition("/", "p", "^b", {"expires": 1}, 2, "all", True),
    ExchangeDefinition("/", "x", "topic", True, False, True, ARGUMENTS),
    QueueDefinition("/", "q", True, False, True, ARGUMENTS, "0001"),
    QueueDefinition("/", "renamed", log_name="q", aliases=("q", "r"), paused=Paused.ALL),
    BindingDefinition("/", "x", "q", "queue", "a.#", ARGUMENTS),
]


@pytest.fixture(params=["memory", "sqlite", "log"])
def opened(request, tmp_path):
    """A context manager that opens the store under test; again for the same data.

    With the log of definitions it is one node's database after the other.
    """
    memory, numbers = MemoryMetadataStore(), count()

    @asynccontextmanager
    async def open_store():
        if request.param == "memory":
            yield memory
            await memory.close()
            return
        async with asyncio.TaskGroup() as group:
            is_log = request.param == "log"
            file = f"{next(numbers) % 2}.db" if is_log else "leveret.db"
            store = await SqliteMetadataStore.open(tmp_path / file, group.create_task)
            try:
                if is_log:
                    async with definitions_shared(tmp_path / "logs", store):
                        yield store
                else:
                    yield store
            finally:  # a test that fails shall not have the collector blame another
                await store.close()

    return open_store


def everything(definitions):
    return [
        definition
        for field in fields(Definitions)
        for definition in getattr(definitions, field.name)
    ]


async def test_empty_at_first(opened):
    async with opened() as store:
        assert everything(await store.load()) == []
        assert not store.pending


async def test_keeps_one_of_each_over_a_restart(opened):
    async with opened() as store:
        for definition in ONE_OF_EACH:
            store.put(definition)
    async with opened() as store:
        kept = everything(await store.load())
    assert kept == ONE_OF_EACH
    arguments = next(d for d in kept if isinstance(d, ExchangeDefinition)).arguments
    assert type(arguments["yes"]) is bool
    assert type(arguments["one"]) is int


async def test_pending_until_flushed(opened):
    async with opened() as store:
        store.put(ONE_OF_EACH[0])
        assert store.pending
        await store.flush()
        assert not store.pending


async def test_put_replaces_by_natural_key(opened):
    async with opened() as store:
        user = UserDefinition("u", "old")
        store.put(user)
        await store.flush()
        store.put(replace(user, password_hash="new"))
        assert (await store.load()).users == [UserDefinition("u", "new")]


async def test_last_word_wins_before_a_flush(opened):
    async with opened() as store:
        queue = QueueDefinition("/", "q")
        store.put(queue)
        store.remove(queue)
        store.put(replace(queue, incarnation="2"))
        store.remove(QueueDefinition("/", "other"))
        assert (await store.load()).queues == [replace(queue, incarnation="2")]


@pytest.mark.parametrize("definition", ONE_OF_EACH, ids=lambda d: type(d).__name__)
async def test_remove_deletes_what_was_durable(opened, definition):
    async with opened() as store:
        for other in ONE_OF_EACH:
            store.put(other)
        await store.flush()
        store.remove(definition)
    async with opened() as store:
        assert everything(await store.load()) == [d for d in ONE_OF_EACH if d != definition]


async def test_bindings_differ_by_arguments_and_destination_type(opened):
    first = BindingDefinition("/", "x", "q", "queue", "k", {"a": 1, "b": 2})
    bindings = [
        first,
        replace(first, arguments={"a": 1}),
        replace(first, arguments={"a": True, "b": 2}),
        replace(first, destination_type="exchange"),
        replace(first, routing_key=""),
    ]
    async with opened() as store:
        for binding in bindings:
            store.put(binding)
        assert len((await store.load()).bindings) == len(bindings)
        store.remove(replace(first, arguments={"b": 2, "a": 1}))
        kept = (await store.load()).bindings
    assert len(kept) == len(bindings) - 1
    assert not any(b == first and type(b.arguments["a"]) is int for b in kept)


async def test_waiting_flushes_share_one_commit(opened):
    async with opened() as store:
        for number in range(100):
            store.put(QueueDefinition("/", f"q{number}"))
        await asyncio.gather(*(store.flush() for _ in range(20)))
        assert not store.pending
        assert len((await store.load()).queues) == 100


VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63 - 1)
    | st.floats(allow_nan=False)
    | st.text(max_size=5)
    | st.binary(max_size=5)
    | st.decimals(allow_nan=False, allow_infinity=False)
    | st.datetimes(timezones=st.just(UTC)),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=10,
)


@settings(
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
    max_examples=examples(50),
)
@given(arguments=st.dictionaries(st.text(max_size=8), VALUES))
async def test_any_field_table_survives(opened, arguments):
    async with opened() as store:
        store.put(QueueDefinition("/", "q", arguments=arguments))
    async with opened() as store:
        assert (await store.load()).queues[0].arguments == arguments


async def test_a_virtual_host_is_removed_with_all_that_is_in_it(opened):
    async with opened() as store:
        others = [
            d for d in ONE_OF_EACH if isinstance(d, UserDefinition | GlobalParameterDefinition)
        ]
        names = {
            getattr(d, "vhost", getattr(d, "name", "")) for d in ONE_OF_EACH if d not in others
        }
        for definition in ONE_OF_EACH:
            store.put(definition)
        await store.flush()
        unwritten = QueueDefinition(min(names), "unwritten")
        elsewhere = QueueDefinition("another", "kept")
        store.put(unwritten)
        store.put(elsewhere)
        for name in names:
            store.remove_vhost(name)
        assert store.pending
        again = QueueDefinition(min(names), "again")
        store.put(again)
    async with opened() as store:
        kept = everything(await store.load())
    assert sorted(map(repr, kept)) == sorted(map(repr, [*others, elsewhere, again]))
