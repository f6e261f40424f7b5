"""A connection whose user's rights are somebody else's to know: asked for, renewed, ended."""

import pytest
from pamqp import commands

from leveret.errors import StorageError
from leveret.ports.authentication import SecretRefusedError, UnansweredError
from tests.support.client import PROTOCOL_HEADER, Client, message
from tests.support.gate import Gate
from tests.support.stage import Stage

EXPIRY_MS = 1_700_000_060_000


class Rights:
    """Knows nothing until it has asked, one question at a time, through a gate."""

    def __init__(self, user, *, refused=(), tags=(), expires_at_ms=EXPIRY_MS):
        self.user, self.tags, self.refused = user, tags, set(refused)
        self.expires_at_ms, self.generation = expires_at_ms, 0
        self.known, self.asked = set(), []
        self.has_topics = False
        self.gate = Gate(is_open=True)

    def forget(self):
        self.known.clear()
        self.generation += 1

    def may_enter(self, vhost):
        return self.answer("vhost", vhost)

    def allows(self, vhost, kind, name, permission):
        return self.answer(permission, name)

    def restricts_topics(self, vhost, exchange):
        return self.has_topics

    def allows_topic(self, vhost, exchange, key, permission):
        return self.answer(permission, exchange, key)

    def answer(self, *question):
        if question not in self.known:
            raise UnansweredError(lambda: self.ask(question))
        return question not in self.refused

    async def ask(self, question):
        await self.gate
        self.asked.append(question)
        self.known.add(question)

    async def renewed(self, secret):
        if secret != "good":
            raise SecretRefusedError("not good")
        return Rights(self.user, tags=self.tags, expires_at_ms=EXPIRY_MS + 60_000)


class Source:
    def __init__(self, rights):
        self.rights = rights

    async def log_in(self, login):
        return self.rights if login.user == self.rights.user else None


def connected(**options):
    rights = Rights("far", **options)
    client = Client(Stage(authenticators=[Source(rights)])).open(user="far")
    rights.asked.clear()
    return client, rights


def closed(code, text, class_id, method_id):
    return ("Channel.Close", code, text, class_id, method_id)


def refusal(permission, kind, name):
    what = f"{permission} access to {kind} '{name}' in vhost '/'"
    return f"ACCESS_REFUSED - {what} refused for user 'far'"


@pytest.mark.covers("B-408")
def test_operations_wait_for_what_must_be_asked():
    client, rights = connected()
    rights.gate.is_open = False
    client.send(commands.Queue.Declare(queue="q"), commands.Queue.Declare(queue="r"))
    assert client.received() == []
    rights.gate.open()
    assert client.names() == ["Queue.DeclareOk"] * 2
    assert rights.asked == [("configure", "q"), ("configure", "r")]
    client.declare("q")
    assert len(rights.asked) == 2


def test_a_vhost_is_entered_when_the_answer_is_there():
    rights = Rights("far", refused=[("vhost", "/")])
    client = Client(Stage(authenticators=[Source(rights)]))
    client.feed(PROTOCOL_HEADER)
    client.send(commands.Connection.StartOk({}, "PLAIN", "\0far\0far"), channel=0)
    client.send(commands.Connection.TuneOk(1, 4096, 0), commands.Connection.Open("/"), channel=0)
    assert client.methods(0)[-1][:3] == (
        "Connection.Close",
        530,
        "NOT_ALLOWED - access to vhost '/' refused for user 'far'",
    )


def test_publishes_wait_for_the_answer_and_keep_their_order():
    client, rights = connected()
    client.declare("q")
    assert client.call(commands.Confirm.Select()).name == "Confirm.SelectOk"
    rights.gate.is_open = False
    rights.asked.clear()
    client.publish("q", b"1", b"2", b"3")
    client.publish("q", b"4")
    assert client.stage.queue("q").message_count == 0
    rights.gate.open()
    client.stage.run()
    assert rights.asked == [("write", "amq.default")]
    client.stage.log("q").commit()
    names = {value.name for _, value in client.received()}
    assert names == {"Basic.Ack"}
    client.consume("q", no_ack=True)
    assert [each.body for each in client.deliveries()] == [b"1", b"2", b"3", b"4"]
    client.publish("q", b"fast")  # the answer is known: nothing is asked
    assert len(rights.asked) == 2  # the consumer's was


def test_what_is_not_stored_while_the_next_publish_waits_for_an_answer_is_nacked():
    client, rights = connected()
    stage, others = client.stage, Client(client.stage).open()
    client.declare("q")
    client.call(commands.Confirm.Select())
    client.publish("q", b"known")
    assert client.names() == ["Basic.Ack"]
    rights.gate.is_open = False
    stage.log("q").append_error = StorageError("full")
    client.feed(message("q", b"lost") + message("", b"asked", exchange="amq.fanout"))
    others.publish("q", b"lost, too")
    stage.log("q").append_error = None
    rights.gate.open()
    assert client.methods() == [("Basic.Nack", 3, True)]
    assert {str(error) for _, error in stage.reported} == {"full"}


def test_a_refused_publish_closes_its_channel_and_drops_what_follows():
    client, _ = connected(refused=[("write", "amq.default")])
    client.declare("q")
    client.publish("q", b"1", b"2")
    text = refusal("write", "exchange", "amq.default")
    assert client.methods() == [closed(403, text, 60, 40)]
    assert client.stage.queue("q").message_count == 0


def test_a_connection_that_ends_while_it_waits_for_an_answer_is_left_in_peace():
    client, rights = connected()
    rights.gate.is_open = False
    client.publish("q", b"1")
    client.transport.lose()
    rights.gate.open()
    client.stage.run()
    assert client.stage.reported == []


def test_a_connection_that_is_shut_while_it_waits_for_an_answer():
    client, rights = connected()
    rights.gate.is_open = False
    client.publish("q", b"1")
    client.connection.credential_expired()
    rights.gate.open()
    assert client.names() == ["Connection.Close"]
    client.send(commands.Connection.CloseOk(), channel=0)
    assert client.transport.closed
    assert client.stage.reported == []


def test_rights_that_change_are_asked_for_again():
    client, rights = connected()
    client.declare("q")
    client.publish("q", b"1")
    rights.forget()
    rights.refused.add(("write", "amq.default"))
    client.publish("q", b"2")
    text = refusal("write", "exchange", "amq.default")
    assert client.methods() == [closed(403, text, 60, 40)]


def test_who_must_not_impersonate_is_the_sources_to_say():
    client, _ = connected(tags=("impersonator",))
    client.declare("q")
    client.publish("q", b"m", user_id="somebody")
    client.consume("q", no_ack=True)
    assert [each.body for each in client.deliveries()] == [b"m"]


@pytest.mark.covers("B-407")
def test_topics_are_asked_for_key_by_key():
    client, rights = connected(refused=[("write", "amq.topic", "closed")])
    rights.has_topics = True
    client.declare("q")
    bind = commands.Queue.Bind(queue="q", exchange="amq.topic", routing_key="#")
    assert client.call(bind).name == "Queue.BindOk"
    rights.asked.clear()
    client.publish("open", b"1", b"2", exchange="amq.topic")
    client.publish("closed", b"3", exchange="amq.topic")
    assert rights.asked == [
        ("write", "amq.topic"),
        ("write", "amq.topic", "open"),
        ("write", "amq.topic", "closed"),
    ]
    text = (
        "ACCESS_REFUSED - write access to topic 'closed' in exchange 'amq.topic' in vhost '/' "
        "refused for user 'far'"
    )
    assert client.methods() == [closed(403, text, 60, 40)]


# -- secrets


@pytest.mark.covers("B-011")
def test_a_new_secret_brings_new_rights_and_more_time():
    client, rights = connected()
    client.declare("q")
    assert client.transport.expires_at_ms == EXPIRY_MS
    answer = client.call(commands.Connection.UpdateSecret("good", "soon over"), channel=0)
    assert answer.name == "Connection.UpdateSecretOk"
    assert client.transport.expires_at_ms == EXPIRY_MS + 60_000
    asked_before = len(rights.asked)
    client.declare("q")
    assert len(rights.asked) == asked_before  # the new ones were asked


@pytest.mark.covers("B-313")
def test_a_refused_secret_closes_the_connection():
    client, _ = connected()
    client.send(commands.Connection.UpdateSecret("bad", "why"), channel=0)
    text = "NOT_ALLOWED - New secret was refused by one of the backends"
    assert client.methods(0) == [("Connection.Close", 530, text, 10, 70)]


@pytest.mark.covers("B-316")
def test_expired_credentials_close_the_connection():
    client, _ = connected()
    client.connection.credential_expired()
    text = "CONNECTION_FORCED - credential expired"
    assert client.methods(0) == [("Connection.Close", 320, text, 0, 0)]


@pytest.mark.covers("B-011")
def test_a_users_password_needs_no_renewal():
    client = Client(Stage()).open()
    answer = client.call(commands.Connection.UpdateSecret("anything", ""), channel=0)
    assert answer.name == "Connection.UpdateSecretOk"
    assert client.transport.expires_at_ms is None
