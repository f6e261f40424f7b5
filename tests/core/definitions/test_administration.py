from dataclasses import replace
from itertools import count

import pytest

from leveret.core.access.permissions import AccessControl
from leveret.core.definitions.administration import Administration, AdministrationError
from leveret.ports.definitions import (
    Definitions,
    GlobalParameterDefinition,
    ParameterDefinition,
    PermissionDefinition,
    PolicyDefinition,
    TopicPermissionDefinition,
    UserDefinition,
    VhostDefinition,
)
from tests.memory_metadata import MemoryMetadataStore

TOPIC_OF_NO_PATTERN = TopicPermissionDefinition("/", "guest", "x", "(")


class Recorder:
    """An administration that starts with the defaults, and what it told the broker."""

    def __init__(self):
        self.told = []
        self.store = MemoryMetadataStore()
        self.administration = Administration(
            AccessControl(),
            self.store,
            random_name=map(str, count(1)).__next__,
            on_vhost_added=lambda vhost: self.told.append(("added", vhost.name)),
            on_vhost_deleted=lambda name: self.told.append(("deleted", name)),
            on_vhost_changed=lambda vhost: self.told.append(("changed", vhost.name)),
            on_policies_changed=lambda name: self.told.append(("policies", name)),
        )


@pytest.fixture
def recorder():
    recorder = Recorder()
    recorder.administration.create_defaults("hash")
    return recorder


@pytest.fixture
def administration(recorder):
    return recorder.administration


async def test_first_start_makes_guest_and_the_default_vhost():
    recorder = Recorder()
    assert recorder.administration.is_first_start
    recorder.administration.create_defaults("hash")
    assert not recorder.administration.is_first_start
    assert recorder.told == [("added", "/")]
    assert await recorder.store.load() == Definitions(
        vhosts=[VhostDefinition("/")],
        users=[UserDefinition("guest", "hash", ("administrator",))],
        permissions=[PermissionDefinition("/", "guest", ".*", ".*", ".*")],
    )


async def test_what_was_kept_is_restored_without_telling_the_broker(recorder):
    restored = Recorder()
    restored.administration.restore(await recorder.store.load())
    assert not restored.administration.is_first_start
    assert restored.administration.vhosts() == recorder.administration.vhosts()
    assert restored.administration.permissions() == recorder.administration.permissions()
    assert restored.told == []
    assert not restored.store.pending


async def test_user_lifecycle(recorder, administration):
    administration.add_user("u", "old", ["monitoring", "monitoring"])
    administration.set_password_hash("u", "new")
    assert administration.access.user("u") == UserDefinition("u", "new", ("monitoring",))
    administration.set_user_tags("u", [])
    administration.set_permission(PermissionDefinition("/", "u", "a", "b", "c"))
    administration.delete_user("u")
    kept = await recorder.store.load()
    assert [user.name for user in kept.users] == ["guest"]
    assert [permission.user for permission in kept.permissions] == ["guest"]


async def test_vhost_lifecycle(recorder, administration):
    administration.add_vhost("v", "for tests")
    administration.describe_vhost("v", "for more tests", ["t"])
    assert administration.vhosts()[1] == VhostDefinition(
        "v", "for more tests", ("t",), incarnation="internal-1"
    )
    administration.set_permission(PermissionDefinition("v", "guest", "", "", ""))
    administration.delete_vhost("v")
    assert recorder.told == [("added", "/"), ("added", "v"), ("changed", "v"), ("deleted", "v")]
    kept = await recorder.store.load()
    assert [vhost.name for vhost in kept.vhosts] == ["/"]
    assert [permission.vhost for permission in kept.permissions] == ["/"]


async def test_cleared_permission_is_not_kept(recorder, administration):
    administration.clear_permission("guest", "/")
    administration.clear_permission("guest", "/")
    assert (await recorder.store.load()).permissions == []
    assert administration.permissions(user="guest") == []


async def test_a_vhost_that_is_made_anew_is_told_from_the_deleted_one(recorder, administration):
    """Its internal topics must not be taken for those of the deleted one, on any node."""
    found = []
    for _ in range(2):
        administration.add_vhost("v")
        found.append(administration.vhost("v").incarnation)
        administration.describe_vhost("v", "another description")
        administration.put_vhost(VhostDefinition("v", "imported"))
        assert administration.vhost("v").incarnation == found[-1]
        assert found[-1] in [vhost.incarnation for vhost in (await recorder.store.load()).vhosts]
        administration.delete_vhost("v")
    assert found == ["internal-1", "internal-2"]


@pytest.mark.covers("B-404")
async def test_vhost_metadata_limits_and_protection(recorder, administration):
    administration.add_vhost("v", default_queue_type="quorum")
    administration.describe_vhost("v", "d", ["t"])
    administration.set_vhost_limits("v", {"max-queues": 5})
    administration.protect_vhost("v", protected=True)
    expected = VhostDefinition(
        "v", "d", ("t",), "quorum", {"max-queues": 5}, protected_from_deletion=True
    )
    assert administration.vhost("v") == replace(expected, incarnation="internal-1")
    assert (await recorder.store.load()).vhosts[1] == administration.vhost("v")
    with pytest.raises(AdministrationError, match="Refusing to delete virtual host 'v'") as raised:
        administration.delete_vhost("v")
    assert raised.value.code == "protected"
    administration.protect_vhost("v", protected=False)
    administration.delete_vhost("v")


@pytest.mark.covers("B-405")
async def test_user_limits_and_protection(recorder, administration):
    administration.set_user_limits("guest", {"max-channels": 0})
    assert (await recorder.store.load()).users[0].limits == {"max-channels": 0}
    administration.set_user_tags("guest", ["protected"])
    with pytest.raises(AdministrationError) as raised:
        administration.delete_user("guest")
    assert raised.value.code == "protected"


@pytest.mark.covers("B-400")
async def test_policies_are_kept_and_told(recorder, administration):
    policy = PolicyDefinition("/", "p", "^a", {"max-length": 1})
    administration.set_policy(policy)
    operator = PolicyDefinition("/", "p", "^a", {"max-length": 2}, operator=True)
    administration.set_policy(operator)
    assert (await recorder.store.load()).policies == [policy, operator]
    administration.clear_policy("/", "p")
    assert (await recorder.store.load()).policies == [operator]
    assert recorder.told == [("added", "/"), *[("policies", "/")] * 3]


@pytest.mark.covers("B-403")
def test_bad_policy_is_refused_in_rabbitmqs_words(administration):
    with pytest.raises(AdministrationError) as raised:
        administration.set_policy(PolicyDefinition("/", "p", "", {"foo": "bar"}))
    assert str(raised.value) == (
        'Validation failed\n\n[{<<"foo">>,<<"bar">>}] are not recognised policy settings\n'
    )


async def test_a_deleted_vhost_takes_its_rules_along(recorder, administration):
    before = await recorder.store.load()
    administration.add_vhost("v")
    administration.set_topic_permission(TopicPermissionDefinition("v", "guest", "x"))
    administration.set_policy(PolicyDefinition("v", "p", "", {"max-length": 1}))
    administration.set_parameter(ParameterDefinition("v", "shovel", "s", {"a": 1}))
    administration.delete_vhost("v")
    assert await recorder.store.load() == before
    assert administration.topic_permissions() == []


async def test_parameters(recorder, administration):
    parameter = ParameterDefinition("/", "shovel", "s", {"a": [1]})
    shared = GlobalParameterDefinition("cluster_name", "c")
    administration.set_parameter(parameter)
    administration.set_global_parameter(shared)
    restored = Recorder()
    restored.administration.restore(await recorder.store.load())
    assert restored.administration.parameters.select(component="shovel") == [parameter]
    assert restored.administration.parameters.select(vhost="v") == []
    assert restored.administration.parameters.all_global() == [shared]
    administration.clear_parameter("/", "shovel", "s")
    administration.clear_global_parameter("cluster_name")
    kept = await recorder.store.load()
    assert (kept.parameters, kept.global_parameters) == ([], [])


@pytest.mark.parametrize(
    ("code", "operation"),
    [
        ("already_exists", lambda a: a.add_user("guest", "")),
        ("already_exists", lambda a: a.add_vhost("/")),
        ("not_found", lambda a: a.delete_user("none")),
        ("not_found", lambda a: a.set_password_hash("none", "")),
        ("not_found", lambda a: a.set_user_tags("none", [])),
        ("not_found", lambda a: a.delete_vhost("none")),
        ("not_found", lambda a: a.describe_vhost("none", "", [])),
        ("not_found", lambda a: a.set_permission(PermissionDefinition("none", "guest"))),
        ("not_found", lambda a: a.set_permission(PermissionDefinition("/", "none"))),
        ("not_found", lambda a: a.clear_permission("none", "/")),
        ("not_found", lambda a: a.permissions(vhost="none")),
        ("invalid", lambda a: a.set_permission(PermissionDefinition("/", "guest", "("))),
        ("invalid", lambda a: a.add_user("", "")),
        ("invalid", lambda a: a.add_user("ü" * 128, "")),
        ("invalid", lambda a: a.add_vhost("line\nfeed")),
        ("invalid", lambda a: a.add_vhost("v", default_queue_type="fast")),
        ("invalid", lambda a: a.set_vhost_limits("/", {"max-channels": 1})),
        ("invalid", lambda a: a.set_user_limits("guest", {"max-channels": "1"})),
        ("invalid", lambda a: a.set_policy(PolicyDefinition("/", "", "", {"expires": 1}))),
        ("invalid", lambda a: a.set_policy(PolicyDefinition("/", "p", "(", {"expires": 1}))),
        ("invalid", lambda a: a.set_topic_permission(TOPIC_OF_NO_PATTERN)),
        ("invalid", lambda a: a.set_parameter(ParameterDefinition("/", "shovel", "", 1))),
        ("not_found", lambda a: a.set_policy(PolicyDefinition("none", "p", "", {"expires": 1}))),
        ("not_found", lambda a: a.clear_policy("/", "none")),
        ("not_found", lambda a: a.clear_policy("/", "none", operator=True)),
        ("not_found", lambda a: a.clear_parameter("/", "shovel", "none")),
        ("not_found", lambda a: a.clear_global_parameter("none")),
        ("not_found", lambda a: a.set_parameter(ParameterDefinition("none", "c", "n", 1))),
        ("not_found", lambda a: a.clear_topic_permissions("none", "/")),
        ("not_found", lambda a: a.topic_permissions(vhost="none")),
        ("not_found", lambda a: a.protect_vhost("none", protected=True)),
        ("invalid", lambda a: a.add_user("u", "", ["a,b"])),
        ("invalid", lambda a: a.add_user("u", "", [str(n) for n in range(65)])),
    ],
)
async def test_refused_operations_change_nothing(recorder, administration, code, operation):
    before = await recorder.store.load()
    with pytest.raises(AdministrationError) as raised:
        operation(administration)
    assert raised.value.code == code
    assert not recorder.store.pending
    assert await recorder.store.load() == before


@pytest.mark.covers("B-178")
def test_every_change_is_an_event():
    events = []
    administration = Administration(
        AccessControl(),
        MemoryMetadataStore(),
        random_name=lambda: "1",
        on_vhost_added=lambda vhost: events.append(("(vhost added)", vhost.name)),
        on_vhost_deleted=lambda name: events.append(("(vhost deleted)", name)),
        on_user_deleted=lambda name: events.append(("(user deleted)", name)),
        emit=lambda key, headers: events.append((key, dict(headers))),
    )
    administration.add_vhost("v", "for tests", ["a"])
    administration.add_user("u", "secret hash", ["monitoring"])
    administration.set_password_hash("u", "another")
    administration.set_password_hash("u", "")
    administration.set_user_tags("u", [])
    administration.set_permission(PermissionDefinition("v", "u", "c", "w", "r"))
    administration.clear_permission("u", "v")
    administration.delete_user("u")
    administration.delete_vhost("v")
    assert "secret" not in str(events)
    assert events == [
        ("(vhost added)", "v"),
        (
            "vhost.created",
            {
                "name": "v",
                "description": "for tests",
                "tags": ("a",),
                "default_queue_type": "classic",
                "tracing": False,
            },
        ),
        ("user.created", {"name": "u"}),
        ("user.tags.set", {"name": "u", "tags": ("monitoring",)}),
        ("user.password.changed", {"name": "u"}),
        ("user.password.cleared", {"name": "u"}),
        ("user.tags.set", {"name": "u", "tags": ()}),
        (
            "permission.created",
            {"vhost": "v", "user": "u", "configure": "c", "write": "w", "read": "r"},
        ),
        ("permission.deleted", {"user": "u", "vhost": "v"}),
        ("(user deleted)", "u"),
        ("user.deleted", {"name": "u"}),
        ("(vhost deleted)", "v"),
        ("vhost.deleted", {"name": "v"}),
    ]


def test_the_firehose_is_a_running_nodes(administration):
    with pytest.raises(AdministrationError, match="only a running node can be traced"):
        administration.trace_vhost("/", on=True)
    told = []
    running = Administration(
        AccessControl(),
        MemoryMetadataStore(),
        random_name=lambda: "1",
        on_vhost_added=lambda _: None,
        on_vhost_deleted=lambda _: None,
        trace=lambda vhost, on: told.append((vhost, on)),
    )
    running.add_vhost("v")
    running.trace_vhost("v", on=True)
    running.trace_vhost("v", on=False)
    with pytest.raises(AdministrationError, match="no vhost 'w'"):
        running.trace_vhost("w", on=True)
    assert told == [("v", True), ("v", False)]


@pytest.mark.covers("B-178")
def test_rules_are_announced():
    told = []
    administration = Administration(
        AccessControl(),
        MemoryMetadataStore(),
        random_name=lambda: "1",
        on_vhost_added=lambda _: None,
        on_vhost_deleted=lambda _: None,
        emit=lambda key, headers: told.append((key, dict(headers))),
    )
    administration.create_defaults("hash")
    told.clear()
    administration.set_policy(PolicyDefinition("/", "p", "^q", {"expires": 1}, 2, "queues"))
    administration.clear_policy("/", "p")
    administration.set_parameter(ParameterDefinition("/", "shovel", "s", 1))
    administration.clear_parameter("/", "shovel", "s")
    administration.set_vhost_limits("/", {"max-queues": 1})
    administration.set_vhost_limits("/", {})
    administration.set_topic_permission(TopicPermissionDefinition("/", "guest", "x", "a", "b"))
    administration.clear_topic_permissions("guest", "/")
    assert [key for key, _ in told] == [
        "policy.set",
        "policy.cleared",
        "parameter.set",
        "parameter.cleared",
        "vhost.limits.set",
        "vhost.limits.cleared",
        "topic.permission.created",
        "topic.permission.deleted",
    ]
    assert told[0][1] == {
        "name": "p",
        "vhost": "/",
        "pattern": "^q",
        "definition": {"expires": 1},
        "priority": 2,
        "apply-to": "queues",
    }
