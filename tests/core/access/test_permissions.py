import pytest

from leveret.core.access.permissions import (
    AccessControl,
    InternalRights,
    InvalidPatternError,
    authorise,
    authorise_topic,
    check_vhost,
    is_loopback,
)
from leveret.errors import ChannelError, ConnectionClosingError
from leveret.ports.definitions import (
    PermissionDefinition,
    TopicPermissionDefinition,
    UserDefinition,
)


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


# -- topics


@pytest.mark.covers("B-235", "B-407")
def test_topic_permission_closes_keys(access):
    access.put_topic_permission(TopicPermissionDefinition("/", "u", "x", "^a\\.", ""))
    authorise_topic(InternalRights(access, "u"), "/", "x", "a.b", "write")
    with pytest.raises(ChannelError) as raised:
        authorise_topic(InternalRights(access, "u"), "/", "x", "b.a", "write")
    assert raised.value.reply_text == (
        "ACCESS_REFUSED - write access to topic 'b.a' in exchange 'x' in vhost '/' refused for "
        "user 'u'"
    )
    with pytest.raises(ChannelError, match=r"read access to topic .a\.b."):
        authorise_topic(InternalRights(access, "u"), "/", "x", "a.b", "read")


@pytest.mark.covers("B-407")
def test_who_has_no_topic_permission_may_use_every_key(access):
    access.put_topic_permission(TopicPermissionDefinition("/", "u", "x", "", ""))
    for user, vhost, exchange in [("v", "/", "x"), ("u", "w", "x"), ("u", "/", "y")]:
        assert not access.restricts_topics(user, vhost, exchange)
        authorise_topic(InternalRights(access, user), vhost, exchange, "k", "write")


@pytest.mark.covers("B-407")
def test_variables_stand_for_the_letters_of_names(access):
    for user, vhost in [("u.1", "v"), (".*", "{username}")]:
        pattern = "^{vhost}-{username}-{client_id}$"
        access.put_topic_permission(TopicPermissionDefinition(vhost, user, "x", pattern, pattern))
        rights = InternalRights(access, user)
        authorise_topic(rights, vhost, "x", f"{vhost}-{user}-{{client_id}}", "read")
        for key in (f"{vhost}-uu1-{{client_id}}", "v-v-{client_id}"):
            with pytest.raises(ChannelError):
                authorise_topic(rights, vhost, "x", key, "read")


def test_topic_permissions_come_and_go(access):
    first = TopicPermissionDefinition("/", "u", "x", "a", "b")
    second = TopicPermissionDefinition("/", "u", "y", "a", "b")
    generation = access.generation
    access.restore([], [], [second, first])
    assert access.generation > generation
    assert access.topic_permissions(user="u") == [first, second]
    assert access.remove_topic_permissions(user="u", vhost="/", exchange="y") == [second]
    assert access.remove_topic_permissions(vhost="/") == [first]
    with pytest.raises(InvalidPatternError):
        access.put_topic_permission(TopicPermissionDefinition("/", "u", "x", "(", ""))


def test_what_is_no_pattern_any_more_is_kept_and_permits_nothing():
    access = AccessControl()
    permission = PermissionDefinition("/", "u", ".*", "(?!a)b", ".*")
    topic = TopicPermissionDefinition("/", "u", "x", ".*", "(?!a)b")
    access.restore([UserDefinition("u")], [permission], [topic])
    assert (access.permissions(), access.topic_permissions()) == ([permission], [topic])
    assert not any(
        access.allows("u", "/", "queue", "b", right) for right in ("configure", "write", "read")
    )
    assert not access.allows_topic("u", "/", "x", "b", "write")


@pytest.fixture
def rights(access):
    return InternalRights(access, "u")


def test_nameless_exchange_is_called_amq_default(rights):
    authorise(rights, "/", "exchange", "", "write")
    with pytest.raises(ChannelError) as raised:
        authorise(rights, "/", "exchange", "", "configure")
    assert raised.value.reply_text == (
        "ACCESS_REFUSED - configure access to exchange 'amq.default' in vhost '/' refused for "
        "user 'u'"
    )


@pytest.mark.covers("B-235")
def test_refusal_carries_rabbitmqs_text(rights):
    authorise(rights, "/", "queue", "q", "write")
    with pytest.raises(ChannelError) as raised:
        authorise(rights, "/", "queue", "q", "read")
    assert raised.value.code == 403
    assert raised.value.explanation == (
        "read access to queue 'q' in vhost '/' refused for user 'u'"
    )


@pytest.mark.covers("B-303")
def test_vhost_without_permissions_is_refused(rights):
    check_vhost(rights, "/")
    with pytest.raises(ConnectionClosingError) as raised:
        check_vhost(rights, "other")
    assert raised.value.reply_text == ("NOT_ALLOWED - access to vhost 'other' refused for user 'u'")


def test_tags_and_permissions_are_those_of_now(access, rights):
    generation = rights.generation
    assert rights.tags == ()
    access.put_user(UserDefinition("u", tags=("impersonator",)))
    assert rights.tags == ("impersonator",)
    access.remove_user("u")
    assert rights.tags == ()
    assert not rights.may_enter("/")
    assert rights.generation > generation
