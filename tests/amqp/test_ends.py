"""A closed channel goes at once, with all that it had.

What refers to each other waits for the garbage collector, which looks at everything there is while
nobody is served: thousands of channels opened and closed would keep everybody waiting. Connections
are tried in test_sockets.py.
"""

import pytest
from pamqp import commands

from tests.support.client import Client
from tests.support.cycles import left_in_cycles
from tests.support.stage import Stage

NUMBER = 2


@pytest.fixture
def stage():
    stage = Stage()
    yield stage
    assert stage.reported == []


@pytest.fixture
def client(stage):
    client = Client(stage).open()
    client.declare("q")
    client.declare("leased", arguments={"x-visibility-timeout": 60_000})
    for _ in range(3):
        client.publish("q", b"body")
        client.publish("leased", b"body")
    return client


def publish(client):
    client.publish("q", b"body", channel=NUMBER)


def confirm(client):
    client.call(commands.Confirm.Select(), NUMBER)
    client.publish("q", b"body", b"body", channel=NUMBER)


def route_nowhere(client):
    client.publish("nothing", b"body", channel=NUMBER, mandatory=True)


def commit(client):
    client.call(commands.Tx.Select(), NUMBER)
    client.publish("q", b"body", channel=NUMBER)
    client.call(commands.Tx.Commit(), NUMBER)


def leave_transaction(client):
    client.call(commands.Tx.Select(), NUMBER)
    client.publish("q", b"body", channel=NUMBER)


def get(client):
    client.send(commands.Basic.Get(queue="q"), channel=NUMBER)


def consume(client):
    client.prefetch(1, NUMBER)
    client.consume("q", channel=NUMBER)


def lease(client):
    client.prefetch(1, NUMBER)
    client.consume("leased", channel=NUMBER)


def consume_replies(client):
    client.consume("amq.rabbitmq.reply-to", channel=NUMBER, no_ack=True)


def declare(client):
    client.call(commands.Queue.Declare(queue="", exclusive=True, auto_delete=True), NUMBER)


USES = [
    publish,
    confirm,
    route_nowhere,
    commit,
    leave_transaction,
    get,
    consume,
    lease,
    consume_replies,
    declare,
]


def fail(client):
    client.send(commands.Queue.Declare(queue="missing", passive=True), channel=NUMBER)
    assert client.received()[-1][1].name == "Channel.Close"
    client.send(commands.Channel.CloseOk(), channel=NUMBER)


def close(client):
    client.send(commands.Channel.Close(200, "", 0, 0), channel=NUMBER)
    assert client.received()[-1][1].name == "Channel.CloseOk"


@pytest.mark.parametrize("end", [close, fail])
@pytest.mark.parametrize("use", USES)
def test_a_closed_channel_leaves_no_cycle(client, use, end):
    def try_it():
        client.open_channel(NUMBER)
        use(client)
        client.received()
        end(client)

    try_it()  # what is made once for all
    with left_in_cycles() as left:
        for _ in range(3):
            try_it()
    assert left == []
