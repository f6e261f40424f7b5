import pytest

from leveret.core.access import AccessControl, InvalidPatternError, is_loopback
from leveret.errors import ChannelError, ConnectionClosingError
from leveret.ports.definitions import PermissionDefinition, UserDefinition


@pytest.fixture
def access():
    access = AccessControl()
    access.put_user(UserDefinition("u"))
    access.put_permission(PermissionDefinition("/", "u", "^own-", "q|amq.default", ""))
    return access


@pytest.mark.covers("B-406")
@pytest.mark.parametrize(
    ("permission", "name", "allowed"),
    [
        ("configure", "own-queue", True),
        ("configure", "not-own-queue", False),
        ("write", "a queue", True),  # searched, not matched whole
        ("write", "x", False),
        ("read", "anything", False),  # '' means ^$
        ("read", "", True),
    ],
)
def test_patterns_are_searched_in_names(access, permission, name, allowed):
    assert access.allows("u", "/", "queue", name, permission) is allowed


def test_nameless_exchange_is_called_amq_default(access):
    assert access.allows("u", "/", "exchange", "", "write")
    with pytest.raises(ChannelError) as raised:
        access.authorise("u", "/", "exchange", "", "configure")
    assert raised.value.reply_text == (
        "ACCESS_REFUSED - configure access to exchange 'amq.default' in vhost '/' refused for "
        "user 'u'"
    )


@pytest.mark.covers("B-235")
def test_refusal_carries_rabbitmqs_text(access):
    access.authorise("u", "/", "queue", "q", "write")
    with pytest.raises(ChannelError) as raised:
        access.authorise("u", "/", "queue", "q", "read")
    assert raised.value.code == 403
    assert raised.value.explanation == (
        "read access to queue 'q' in vhost '/' refused for user 'u'"
    )


@pytest.mark.covers("B-303")
def test_vhost_without_permissions_is_refused(access):
    access.check_vhost("u", "/")
    with pytest.raises(ConnectionClosingError) as raised:
        access.check_vhost("u", "other")
    assert raised.value.reply_text == ("NOT_ALLOWED - access to vhost 'other' refused for user 'u'")


@pytest.mark.covers("B-406")
def test_nothing_is_allowed_where_nothing_was_permitted(access):
    assert not access.allows("u", "other", "queue", "q", "write")
    assert not access.allows("stranger", "/", "queue", "q", "write")


@pytest.mark.parametrize("pattern", ["(", "a" * 1025])
def test_bad_pattern_is_refused_and_the_old_one_kept(access, pattern):
    with pytest.raises(InvalidPatternError):
        access.put_permission(PermissionDefinition("/", "u", ".*", pattern, ".*"))
    assert access.permissions() == [PermissionDefinition("/", "u", "^own-", "q|amq.default", "")]


@pytest.mark.parametrize(
    "change",
    [
        lambda access: access.put_user(UserDefinition("v")),
        lambda access: access.remove_user("u"),
        lambda access: access.put_permission(PermissionDefinition("/", "u")),
        lambda access: access.remove_permission("u", "/"),
        lambda access: access.remove_vhost("/"),
    ],
)
def test_every_change_moves_the_generation(access, change):
    before = access.generation
    change(access)
    assert access.generation > before


def test_removing_a_user_removes_its_permissions(access):
    removed = access.remove_user("u")
    assert [permission.vhost for permission in removed] == ["/"]
    assert access.user("u") is None
    assert not access.allows("u", "/", "queue", "q", "write")


def test_removing_a_vhost_leaves_the_others(access):
    access.put_permission(PermissionDefinition("other", "u", ".*", ".*", ".*"))
    access.remove_vhost("/")
    assert [permission.vhost for permission in access.permissions()] == ["other"]


def test_permissions_can_be_listed_by_user_and_by_vhost(access):
    access.put_permission(PermissionDefinition("/", "a"))
    access.put_permission(PermissionDefinition("v", "u"))
    assert [p.user for p in access.permissions(vhost="/")] == ["a", "u"]
    assert [p.vhost for p in access.permissions(user="u")] == ["/", "v"]


@pytest.mark.parametrize(
    ("host", "expected"),
    [
        ("127.0.0.1", True),
        ("127.8.9.1", True),
        ("::1", True),
        ("::ffff:127.0.0.1", True),
        ("::ffff:10.0.0.1", False),
        ("10.0.0.1", False),
        ("fe80::1%eth0", False),
        ("localhost", False),
    ],
)
def test_loopback_addresses(host, expected):
    assert is_loopback(host) is expected


@pytest.mark.covers("B-013")
def test_loopback_users_only_from_this_machine(access):
    assert access.may_connect_from("guest", "127.0.0.1", ("guest",))
    assert not access.may_connect_from("guest", "10.0.0.1", ("guest",))
    assert access.may_connect_from("u", "10.0.0.1", ("guest",))


def test_a_remembered_answer_does_not_outlive_a_change():
    access = AccessControl()
    access.put_permission(PermissionDefinition("/", "u", read="q"))
    assert access.allows("u", "/", "queue", "q", "read")
    access.put_permission(PermissionDefinition("/", "u", read="other"))
    assert not access.allows("u", "/", "queue", "q", "read")
    access.remove_permission("u", "/")
    assert not access.allows("u", "/", "queue", "other", "read")
