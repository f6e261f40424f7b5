import re
from pathlib import Path

import pytest

from leveret.core.access.passwords import verify_password
from leveret.core.admin.commands import COMMANDS
from leveret.core.definitions.model import Model
from leveret.errors import StorageError
from leveret.mgmt_ui.control import COMMAND_LINE
from leveret.mgmt_ui.operations.access import create_defaults
from leveret.mgmt_ui.operations.context import AdminContext
from leveret.mgmt_ui.operations.dispatcher import MODULES, perform
from leveret.ports.definitions import Definitions
from leveret.storage.files import RealFileSystem
from leveret.storage.key_administration import KeyAdministration
from leveret.storage.master_key import generate_master_key_file
from leveret.storage.usage import SqliteUsageStore
from tests.memory_metadata import MemoryMetadataStore
from tests.storage.keys import make_keyring

ROOT = Path(__file__).parents[3]
# Modules whose commands need a running node.
RUNNING = {
    *(
        f"leveret.features.{name}.commands"
        for name in (
            *("batch_leases", "browse", "dead_letter", "dedup", "delay"),
            *("groups", "range_reads", "retry", "staged_batches", "topics", "trace"),
            "transactions",
        )
    ),
    *(
        f"leveret.mgmt_ui.operations.{name}"
        for name in ("backup", "inventory", "node", "publishing", "topology")
    ),
}
TOPIC = {"user": "u", "vhost": "v", "exchange": "x"}
PARAMETER = {"vhost": "v", "component": "c", "name": "n"}
POLICY = {
    "vhost": "v",
    "name": "p",
    "pattern": "",
    "definition": {"max-length": 1},
    "priority": 0,
    "apply_to": "all",
    "operator": True,
}


@pytest.fixture
async def node(tmp_path):
    model = Model(Definitions(), MemoryMetadataStore(), lambda: "random")
    await create_defaults(model.administration)
    files = RealFileSystem()
    encryption = KeyAdministration(make_keyring(files, tmp_path), files, tmp_path, lambda: 0)
    usage = SqliteUsageStore(tmp_path / "usage.db")
    yield AdminContext(model.administration, model.vhosts, usage=usage, encryption=encryption)
    await usage.close()


@pytest.fixture
def administration(node):
    return node.administration


async def ask(node, operation, **parameters):
    return await perform(node, {"operation": operation, "parameters": parameters}, COMMAND_LINE)


async def test_defaults_are_made_once(administration):
    guest = administration.access.user("guest")
    assert verify_password(guest.password_hash, "guest")
    await create_defaults(administration)
    assert administration.access.user("guest") is guest


async def test_answer_comes_after_the_change_is_durable(node, administration):
    answer = await ask(node, "user.add", name="u", password="secret", tags=["t"])
    assert answer == {"ok": True, "result": None}
    assert not administration.store.pending
    assert verify_password(administration.access.user("u").password_hash, "secret")


async def test_no_answer_carries_a_password_or_its_hash(node, administration):
    answer = await ask(node, "user.list")
    assert answer["result"] == [{"name": "guest", "tags": ["administrator"], "limits": {}}]


def test_every_module_with_commands_is_listed():
    found = {
        ".".join(path.relative_to(ROOT).with_suffix("").parts)
        for path in (ROOT / "leveret").rglob("*.py")
        if re.search(r"^@(command|query)\(", path.read_text(), re.MULTILINE)
    }
    assert found == {module.__name__ for module in MODULES}
    assert found == {command.handler.__module__ for command in COMMANDS.values()}


async def test_every_operation_answers(node, administration, tmp_path):
    generate_master_key_file(tmp_path / "new")
    steps = [
        ("vhost.add", {"name": "v", "description": "", "tags": []}),
        ("vhost.set", {"name": "v", "description": "d", "tags": ["t"]}),
        ("vhost.list", {}),
        ("vhost.protect", {"name": "v", "protected": True}),
        ("vhost.protect", {"name": "v", "protected": False}),
        ("vhost.create_queues", {"name": "v", "on": True}),
        ("user.add", {"name": "u", "password": "p", "tags": []}),
        ("user.put", {"name": "u", "password": "p", "tags": []}),
        ("user.set_password", {"name": "u", "password": "q"}),
        ("user.set_tags", {"name": "u", "tags": ["t"]}),
        ("user.list", {}),
        ("permission.set", {"user": "u", "vhost": "v", "configure": "", "write": "", "read": ""}),
        ("permission.list", {"user": "u", "vhost": None}),
        ("permission.clear", {"user": "u", "vhost": "v"}),
        ("limits.set", {"kind": "vhost", "name": "v", "limits": {"max-queues": 1}}),
        ("limits.set", {"kind": "user", "name": "u", "limits": {"max-channels": 1}}),
        ("limits.list", {}),
        ("limits.clear", {"kind": "user", "name": "u", "limit": "max-channels"}),
        ("topic_permission.set", {**TOPIC, "write": "", "read": ""}),
        ("topic_permission.list", {"user": "u"}),
        ("topic_permission.clear", {**TOPIC, "exchange": None}),
        ("policy.set", POLICY),
        ("policy.list", {"vhost": None, "operator": True}),
        ("policy.clear", {"vhost": "v", "name": "p", "operator": True}),
        ("parameter.set", {**PARAMETER, "value": {"a": [1]}}),
        ("parameter.list", {}),
        ("parameter.clear", PARAMETER),
        ("global_parameter.set", {"name": "n", "value": 1.5}),
        ("global_parameter.list", {}),
        ("global_parameter.clear", {"name": "n"}),
        ("alert.set", {"vhost": "v", "name": "a", "rule": {"condition": "no_consumers"}}),
        ("alert.list", {"vhost": "v"}),
        ("alert.clear", {"vhost": "v", "name": "a"}),
        ("audit.list", {"limit": 10}),
        ("definitions.export", {}),
        ("rabbitmq_definitions.export", {}),
        ("definitions.rehearse", {"document": {"users": []}}),
        ("definitions.import", {"document": {"users": []}}),
        ("encryption.enable", {"vhost": "v"}),
        ("encryption.rotate", {"vhost": "v"}),
        ("encryption.rotate_master", {"new_key_file": str(tmp_path / "new")}),
        ("encryption.status", {}),
        ("encryption.disable", {"vhost": "v"}),
        ("user.delete", {"name": "u"}),
        ("vhost.delete", {"name": "v"}),
        ("usage.list", {"since": 0, "until": 3600, "subject": "queue"}),
    ]
    needing = {name for name, command in COMMANDS.items() if command.handler.__module__ in RUNNING}
    needing |= {
        "vhost.trace_on",
        "vhost.trace_off",
        "alert.status",
        "loss.list",
        "loss.acknowledge",
    }
    assert {operation for operation, _ in steps} | needing == set(COMMANDS)
    for operation, parameters in steps:
        assert (await ask(node, operation, **parameters))["ok"], operation


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
        {"operation": "user.set_password", "parameters": {"name": "guest", "password_hash": "x"}},
        {"operation": "policy.set", "parameters": {**POLICY, "priority": "0"}},
        {"operation": "policy.set", "parameters": {**POLICY, "priority": True}},
        {"operation": "policy.set", "parameters": {**POLICY, "definition": []}},
        {"operation": "limits.set", "parameters": {"kind": "x", "name": "v", "limits": {}}},
        {"operation": "definitions.import", "parameters": {"document": []}},
    ],
)
async def test_what_is_no_request_is_answered_so(node, administration, request_):
    answer = await perform(node, request_, COMMAND_LINE)
    assert answer["error"] == "invalid"
    assert answer["explanation"]


async def test_refusal_names_its_reason(node, administration):
    assert await ask(node, "user.delete", name="none") == {
        "ok": False,
        "error": "not_found",
        "explanation": "no user 'none'",
    }


async def test_failing_disk_is_answered(node, administration, monkeypatch):
    async def fail():
        raise StorageError("no space left")

    monkeypatch.setattr(administration.store, "flush", fail)
    answer = await ask(node, "vhost.add", name="new", description="", tags=[])
    assert (answer["ok"], answer["error"]) == (False, "storage")
    assert (await ask(node, "user.list"))["ok"], "who only looks needs no room"


async def test_what_needs_a_running_node_says_so(node):
    answer = await ask(node, "queue.purge", vhost="/", name="q", waiting=False)
    assert answer["explanation"] == "no node is running: start one with `leveret serve`"


@pytest.mark.parametrize(
    ("command", "parameters", "problem"),
    [
        ("queue.purge", {"vhost": "/", "name": "q"}, "waiting is missing"),
        ("queue.purge", {"vhost": 1, "name": "q", "waiting": False}, "vhost is text"),
        ("queue.purge", {"vhost": "/", "name": "q", "waiting": 1}, "waiting is true or false"),
        (
            "vhost.add",
            {"name": "v", "description": "", "tags": [1]},
            "tags is a list, each item text",
        ),
        (
            "vhost.add",
            {"name": "\ud800", "description": "", "tags": []},
            "name is no valid Unicode text",
        ),
    ],
)
async def test_a_parameter_that_does_not_fit_is_named_with_what_fits(
    node, command, parameters, problem
):
    answer = await perform(node, {"operation": command, "parameters": parameters}, COMMAND_LINE)
    assert answer["explanation"] == f"{command}: {problem}"


@pytest.mark.parametrize("number", [1 << 63, -(1 << 70)])
async def test_a_number_that_no_store_holds_is_refused(node, number):
    answer = await ask(node, "usage.list", since=number, until=0)
    assert answer["explanation"] == "usage.list: since is a number of more than 64 bits"
