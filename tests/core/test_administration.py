import pytest

from leveret.core.access import AccessControl
from leveret.core.administration import Administration, AdministrationError
from leveret.ports.definitions import (
    Definitions,
    PermissionDefinition,
    UserDefinition,
    VhostDefinition,
)
from tests.memory_metadata import MemoryMetadataStore


class Recorder:
    """An administration that starts with the defaults, and what it told the broker."""

    def __init__(self):
        self.told = []
        self.store = MemoryMetadataStore()
        self.administration = Administration(
            AccessControl(),
            self.store,
            on_vhost_added=lambda vhost: self.told.append(("added", vhost.name)),
            on_vhost_deleted=lambda name: self.told.append(("deleted", name)),
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
    assert administration.vhosts()[1] == VhostDefinition("v", "for more tests", ("t",))
    administration.set_permission(PermissionDefinition("v", "guest", "", "", ""))
    administration.delete_vhost("v")
    assert recorder.told == [("added", "/"), ("added", "v"), ("deleted", "v")]
    kept = await recorder.store.load()
    assert [vhost.name for vhost in kept.vhosts] == ["/"]
    assert [permission.vhost for permission in kept.permissions] == ["/"]


async def test_cleared_permission_is_not_kept(recorder, administration):
    administration.clear_permission("guest", "/")
    administration.clear_permission("guest", "/")
    assert (await recorder.store.load()).permissions == []
    assert administration.permissions(user="guest") == []


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
