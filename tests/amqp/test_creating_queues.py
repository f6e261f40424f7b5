"""Queues that their first message creates, and what a queue's definition says of its origin."""

import pytest
from pamqp import commands

from leveret.core.access.limits import NodeLimits
from leveret.ports.definitions import VhostDefinition
from tests.support.client import Client
from tests.support.gate import Gate
from tests.support.stage import Stage


def creating(**options):
    stage = Stage(**options)
    vhost = VhostDefinition("/", default_queue_type="quorum", creates_queues=True)
    stage.broker.change_vhost(vhost)
    return stage


@pytest.fixture
def stage():
    return creating()


def queues(stage):
    return set(stage.broker.vhosts["/"].queues)


@pytest.mark.parametrize("mandatory", [False, True])
@pytest.mark.parametrize("confirms", [False, True])
def test_the_first_message_creates_its_queue(stage, mandatory, confirms):
    client = Client(stage).open()
    if confirms:
        client.call(commands.Confirm.Select())
    client.publish("new", b"1", b"2", mandatory=mandatory)
    assert [name for name, *_ in client.methods()] == (["Basic.Ack"] if confirms else [])
    assert client.count("new") == 2
    definition = stage.queue("new").definition
    assert definition.durable
    assert definition.arguments == {"x-queue-type": "quorum"}
    assert (definition.created_by, definition.created_ms) == ("guest", stage.now)
    known = stage.metadata.kept if confirms else stage.metadata.unwritten
    assert definition in known.values()


def test_a_confirm_waits_until_the_queue_is_on_disk(stage, monkeypatch):
    client = Client(stage).open()
    client.call(commands.Confirm.Select())
    gate = Gate(is_open=False)

    async def flush():
        await gate

    monkeypatch.setattr(stage.metadata, "flush", flush)
    client.publish("new", b"1")
    assert client.methods() == []
    gate.is_open = True
    stage.run()
    client.feed(b"")
    assert [name for name, *_ in client.methods()] == ["Basic.Ack"]


@pytest.mark.parametrize(
    "publish",
    [
        {"key": "new", "exchange": "amq.direct"},
        {"key": "amq.new"},
        {"key": "new\n"},
        {"key": ""},
    ],
)
def test_other_messages_create_nothing(stage, publish):
    client = Client(stage).open()
    client.publish(publish.pop("key"), b"m", mandatory=True, **publish)
    assert client.methods()[0][0] == "Basic.Return"
    assert queues(stage) == set()


def test_who_may_not_configure_it_creates_nothing(stage):
    stage.add_user("reader", configure="^mine")
    client = Client(stage).open(user="reader")
    client.publish("new", b"m")
    client.publish("mine", b"m")
    assert client.methods() == []
    assert queues(stage) == {"mine"}


def test_limits_hold():
    stage = creating(limits=NodeLimits(queues_max=1))
    client = Client(stage).open()
    client.publish("one", b"m")
    client.publish("two", b"m")
    ((closed, code, *_),) = client.methods()
    assert (closed, code) == ("Channel.Close", 406)
    assert queues(stage) == {"one"}


def test_channels_that_are_open_follow_the_virtual_host():
    stage = Stage()
    client = Client(stage).open()
    client.publish("one", b"m")
    stage.broker.change_vhost(VhostDefinition("/", creates_queues=True))
    client.publish("one", b"m")
    stage.broker.change_vhost(VhostDefinition("/"))
    client.publish("two", b"m")
    assert queues(stage) == {"one"}
    assert client.count("one") == 1


def test_a_declaration_says_who_created_a_queue(stage):
    stage.add_user("alice")
    Client(stage).open(user="alice").declare("hers", durable=True)
    made = stage.now
    stage.advance(5)
    Client(stage).open().declare("hers", durable=True)
    definition = stage.queue("hers").definition
    assert (definition.created_by, definition.created_ms) == ("alice", made)
