import pytest

from leveret.core.access import AccessControl
from leveret.core.administration import Administration
from leveret.core.passwords import verify_password
from leveret.errors import StorageError
from leveret.mgmt_ui.operations import OPERATIONS, create_defaults, perform
from tests.memory_metadata import MemoryMetadataStore


@pytest.fixture
async def administration():
    administration = Administration(
        AccessControl(),
        MemoryMetadataStore(),
        on_vhost_added=lambda _: None,
        on_vhost_deleted=lambda _: None,
        trace=lambda _name, _on: None,
    )
    await create_defaults(administration)
    return administration


async def ask(administration, operation, **parameters):
    return await perform(administration, {"operation": operation, "parameters": parameters})


async def test_defaults_are_made_once(administration):
    guest = administration.access.user("guest")
    assert verify_password(guest.password_hash, "guest")
    await create_defaults(administration)
    assert administration.access.user("guest") is guest


async def test_answer_comes_after_the_change_is_durable(administration):
    answer = await ask(administration, "user.add", name="u", password="secret", tags=["t"])
    assert answer == {"ok": True, "result": None}
    assert not administration.store.pending
    assert verify_password(administration.access.user("u").password_hash, "secret")


async def test_no_answer_carries_a_password_or_its_hash(administration):
    answer = await ask(administration, "user.list")
    assert answer["result"] == [{"name": "guest", "tags": ["administrator"]}]


async def test_every_operation_answers(administration):
    steps = [
        ("vhost.add", {"name": "v", "description": "", "tags": []}),
        ("vhost.set", {"name": "v", "description": "d", "tags": ["t"]}),
        ("vhost.list", {}),
        ("vhost.trace_on", {"name": "v"}),
        ("vhost.trace_off", {"name": "v"}),
        ("user.add", {"name": "u", "password": "p", "tags": []}),
        ("user.set_password", {"name": "u", "password": "q"}),
        ("user.set_tags", {"name": "u", "tags": ["t"]}),
        ("user.list", {}),
        ("permission.set", {"user": "u", "vhost": "v", "configure": "", "write": "", "read": ""}),
        ("permission.list", {"user": "u", "vhost": None}),
        ("permission.clear", {"user": "u", "vhost": "v"}),
        ("user.delete", {"name": "u"}),
        ("vhost.delete", {"name": "v"}),
    ]
    assert {operation for operation, _ in steps} == set(OPERATIONS)
    for operation, parameters in steps:
        assert (await ask(administration, operation, **parameters))["ok"], operation


@pytest.mark.parametrize(
    "request_",
    [
        None,
        [],
        {},
        {"operation": "user.list"},
        {"operation": "nonsense", "parameters": {}},
        {"operation": "user.list", "parameters": {"surplus": "x"}},
        {"operation": "user.delete", "parameters": {}},
        {"operation": "user.delete", "parameters": {"name": 1}},
        {"operation": "user.delete", "parameters": {"name": None}},
        {"operation": "user.set_tags", "parameters": {"name": "guest", "tags": "t"}},
        {"operation": "user.set_tags", "parameters": {"name": "guest", "tags": [1]}},
        {"operation": "user.set_tags", "parameters": {"name": "guest", "tags": ["\ud800"]}},
        {"operation": "user.set_password", "parameters": {"name": "guest", "password": ""}},
    ],
)
async def test_what_is_no_request_is_answered_so(administration, request_):
    answer = await perform(administration, request_)
    assert answer["error"] == "invalid"
    assert answer["explanation"]


async def test_refusal_names_its_reason(administration):
    assert await ask(administration, "user.delete", name="none") == {
        "ok": False,
        "error": "not_found",
        "explanation": "no user 'none'",
    }


async def test_failing_disk_is_answered(administration, monkeypatch):
    async def fail():
        raise StorageError("no space left")

    monkeypatch.setattr(administration.store, "flush", fail)
    answer = await ask(administration, "user.list")
    assert (answer["ok"], answer["error"]) == (False, "storage")
