"""Logging in, and what rights are asked for."""

import pytest

from leveret.core.access.authentication import (
    InternalRights,
    answered,
    authorise,
    check_vhost,
    log_in,
)
from leveret.core.access.permissions import AccessControl
from leveret.errors import ChannelError, ConnectionClosingError
from leveret.ports.authentication import Login, UnansweredError
from leveret.ports.definitions import PermissionDefinition, UserDefinition


@pytest.fixture
def access():
    access = AccessControl()
    access.put_user(UserDefinition("u"))
    access.put_permission(PermissionDefinition("/", "u", "^own-", "q|amq.default", ""))
    return access


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


class Source:
    """Lets one user in, and remembers whom it was asked about."""

    def __init__(self, user):
        self.user, self.asked = user, []

    async def log_in(self, login):
        self.asked.append(login.user)
        return self if login.user == self.user else None


def run(coroutine):
    with pytest.raises(StopIteration) as stopped:
        coroutine.send(None)
    return stopped.value.value


@pytest.mark.covers("B-408")
def test_the_first_source_that_accepts_decides():
    sources = [Source("a"), Source("b"), Source("b")]
    assert run(log_in(sources, Login("b", "secret", "127.0.0.1"))) is sources[1]
    assert [source.asked for source in sources] == [["b"], ["b"], []]
    assert run(log_in(sources, Login("c", "secret", "127.0.0.1"))) is None


def test_what_must_be_asked_for_is_asked_and_then_the_question_is_put_again():
    known = []

    async def ask():
        known.append(True)

    def question():
        if not known:
            raise UnansweredError(ask)
        return "yes"

    assert run(answered(question)) == "yes"
    assert known == [True]


def test_a_refusal_is_passed_on():
    def question():
        raise ChannelError(403, "no")

    with pytest.raises(ChannelError, match="no"):
        answered(question).send(None)
