"""Changes by administrators are written down, with their outcome and without secrets."""

from __future__ import annotations

import pytest

from leveret.core.definitions.model import Model
from leveret.errors import StorageError
from leveret.mgmt_ui.operations.audit import Audit
from leveret.mgmt_ui.operations.context import AdminContext
from leveret.mgmt_ui.operations.dispatcher import perform
from leveret.ports.audit import Actor, AuditQuery, Way
from leveret.ports.definitions import Definitions
from leveret.storage.audit import SqliteAuditStore
from tests.memory_metadata import MemoryMetadataStore

ACTOR = Actor("alice", "127.0.0.1", Way.HTTP)


@pytest.fixture
async def store(tmp_path):
    store = SqliteAuditStore(tmp_path / "audit.db")
    yield store
    await store.close()


@pytest.fixture
def node(store):
    times = iter(range(1000, 2000))
    model = Model(Definitions(), MemoryMetadataStore(), lambda: "random")
    audit = Audit(store, lambda: next(times))
    return AdminContext(model.administration, model.vhosts, audit=audit)


async def ask(node, operation, **parameters):
    return await perform(node, {"operation": operation, "parameters": parameters}, ACTOR)


async def test_who_did_what_is_written_down(node, store):
    await ask(node, "user.add", name="u", password="hush", tags=["monitoring"])
    [record] = await store.read(AuditQuery(), 10)
    assert record.actor == ACTOR
    assert (record.at_ms, record.operation, record.error) == (1000, "user.add", "")
    assert record.parameters == {"name": "u", "password": "…", "tags": ["monitoring"]}


async def test_a_refusal_is_written_down_with_its_reason(node, store):
    await ask(node, "user.delete", name="nobody")
    [record] = await store.read(AuditQuery(), 10)
    assert (record.error, record.explanation) == ("not_found", "no user 'nobody'")


async def test_who_only_looks_leaves_no_trace(node, store):
    await ask(node, "user.list")
    await ask(node, "parameter.list")
    await perform(node, {"operation": "no.such"}, ACTOR)
    assert await store.read(AuditQuery(), 10) == []


async def test_secrets_deep_within_and_long_values_are_left_out(node, store):
    value = {"src-uri": "amqp://u:hush@h", "src-queue": "q", "inner": {"api_token": "hush"}}
    await ask(
        node, "parameter.set", vhost="v", component="c", name="n", value={**value, "x": "y" * 2000}
    )
    [record] = await store.read(AuditQuery(), 10)
    assert record.parameters["value"] == {
        "src-uri": "…",
        "src-queue": "q",
        "inner": {"api_token": "…"},
        "x": "…",
    }


async def test_who_has_had_the_hashes_of_passwords_is_written_down(node, store):
    await ask(node, "definitions.export")
    await ask(node, "definitions.export", vhost="nowhere")
    refused, exported = await store.read(AuditQuery(), 10)
    assert (exported.operation, exported.actor) == ("definitions.export", ACTOR)
    assert (exported.parameters, exported.error) == ({}, "")
    assert (refused.parameters, refused.error) == ({"vhost": "nowhere"}, "not_found")


RULE = {"condition": "backlog", "above": 1, "webhook": "https://h.example/hush", "secret": "hush"}
PARAMETER = {"vhost": "v", "component": "alert", "name": "n"}


@pytest.mark.parametrize(
    ("operation", "parameters"),
    [
        ("alert.set", {"vhost": "v", "name": "n", "rule": RULE}),
        ("parameter.set", {**PARAMETER, "value": RULE}),
        ("parameter.set", {**PARAMETER, "value": list(map(list, RULE.items()))}),
        ("definitions.import", {"document": {"parameters": [{**PARAMETER, "value": RULE}]}}),
        (
            "definitions.import",
            {
                "document": {
                    "vhosts": [{"name": "v"}],
                    "parameters": [{**PARAMETER, "value": RULE}],
                }
            },
        ),
    ],
)
async def test_addresses_of_webhooks_are_secrets(node, store, operation, parameters):
    await ask(node, operation, **parameters)
    [record] = await store.read(AuditQuery(), 10)
    assert "backlog" in str(record.parameters)
    assert "hush" not in f"{record.parameters} {record.explanation}"


async def test_records_are_found_by_time_user_operation_and_page(node, store):
    for number in range(4):
        await ask(node, "vhost.delete" if number % 2 else "user.delete", name="no")
    numbers = [record.number for record in await store.read(AuditQuery(), 10)]
    assert numbers == [4, 3, 2, 1]

    async def found(count_max=10, **query):
        return [record.number for record in await store.read(AuditQuery(**query), count_max)]

    assert await found(2) == [4, 3]
    assert await found(before=3) == [2, 1]
    assert await found(since_ms=1001, until_ms=1003) == [3, 2]
    assert await found(user="alice", operation="vhost.") == [4, 2]
    assert await found(user="ALICE") == []
    await store.forget(1002)
    assert await found() == [4, 3]


async def test_a_log_that_cannot_be_written_does_not_undo_what_was_done(node, store, caplog):
    async def full(_):
        raise StorageError("no space left on device")

    store.add = full
    assert (await ask(node, "vhost.add", name="v", description="", tags=[]))["ok"]
    assert "the audit log lacks vhost.add by 'alice': no space left" in caplog.text


@pytest.mark.parametrize("key", ["since", "until", "before"])
async def test_a_number_that_no_store_holds_is_refused(node, key):
    answer = await ask(node, "audit.list", limit=5, **{key: 1 << 70})
    assert answer["error"] == "invalid"
    assert key in answer["explanation"]


@pytest.mark.parametrize("levels", [5, 50, 400])
async def test_what_is_deep_or_endless_is_written_down_without_its_depth(node, store, levels):
    value: object = {"end": 1}
    for _ in range(levels):
        value = {"a": value}
    await ask(node, "parameter.set", vhost="v", component="c", name="n", value=value)
    await ask(node, "parameter.set", vhost="v", component="c", name="n", value={"x": [1] * 10**6})
    flat, deep = await store.read(AuditQuery(), 10)
    assert "…" in str(deep.parameters["value"])
    assert flat.parameters["value"] == {"x": "…"}
