"""Exchanges, queues, bindings and connections, changed as an administrator changes them."""

import pytest

from leveret.features.celery.eta_hold import EtaHold
from leveret.features.retry.retrying import RetryTopic
from leveret.mgmt_ui.control import COMMAND_LINE
from leveret.mgmt_ui.operations.dispatcher import perform
from tests.support.client import Client
from tests.support.site import Site

QUEUE = {"durable": True, "auto_delete": False, "arguments": {}}
EXCHANGE = {"type": "direct", "durable": True, "auto_delete": False, "internal": False}
BINDING = {"source": "x", "destination_type": "queue", "routing_key": "k", "arguments": {"a": 1}}


@pytest.fixture
def site():
    site = Site()
    yield site
    site.stage.run()  # logs are deleted in the background


@pytest.fixture
def ask(site):
    async def ask(operation, **parameters):
        request = {"operation": operation, "parameters": {"vhost": "/", **parameters}}
        answer = await perform(site.context, request, COMMAND_LINE)
        return answer["result"] if answer["ok"] else (answer["error"], answer["explanation"])

    return ask


def queue(site, name):
    return site.broker.vhosts["/"].queues.get(name)


async def test_a_queue_is_declared_and_deleted(site, ask):
    assert await ask("queue.declare", name="q", type="quorum", **QUEUE) == "q"
    assert queue(site, "q").definition.arguments == {"x-queue-type": "quorum"}
    assert await ask("queue.declare", name="q", type="quorum", **QUEUE) == "q"
    assert await ask("queue.delete", name="q", if_unused=False, if_empty=False) == 0
    assert queue(site, "q") is None
    assert await ask("queue.delete", name="q", if_unused=False, if_empty=False) == (
        "not_found",
        "no queue 'q' in vhost '/'",
    )


async def test_the_broker_names_a_queue_without_a_name(ask):
    assert (await ask("queue.declare", name="", **QUEUE)).startswith("amq.gen-")


async def test_what_holds_for_clients_holds_here(ask):
    await ask("queue.declare", name="q", **QUEUE)
    code, explanation = await ask("queue.declare", name="q", **{**QUEUE, "durable": False})
    assert code == "invalid"
    assert explanation.startswith("inequivalent arg 'durable' for queue 'q' in vhost '/'")
    arguments = {"x-message-ttl": -1}
    code, explanation = await ask("queue.declare", name="r", **{**QUEUE, "arguments": arguments})
    assert (code, "x-message-ttl" in explanation) == ("invalid", True)
    answer = await ask("queue.declare", name="r", **{**QUEUE, "arguments": {"deep": [[2**64]]}})
    assert answer == ("invalid", "arguments.deep[0][0]: does not fit into 64 bits")
    assert (await ask("queue.declare", name="amq.mine", **QUEUE))[0] == "forbidden"


async def test_a_queue_that_is_used_or_not_empty_stays(site, ask):
    client = Client(site.stage).open()
    client.declare("q", durable=True)
    client.publish("q", b"1", b"2")
    answer = await ask("queue.delete", name="q", if_unused=False, if_empty=True)
    assert answer == ("invalid", "queue 'q' in vhost '/' not empty")
    client.consume("q")
    answer = await ask("queue.delete", name="q", if_unused=True, if_empty=False)
    assert answer == ("invalid", "queue 'q' in vhost '/' in use")
    assert await ask("queue.delete", name="q", if_unused=False, if_empty=False) == 0


async def test_purging_tells_how_many_there_were(site, ask):
    client = Client(site.stage).open()
    client.declare("q", durable=True)
    client.publish("q", b"1", b"2")
    assert await ask("queue.purge", name="q", waiting=False) == 2
    assert queue(site, "q").message_count == 0
    await ask("queue.declare", name="s", type="stream", **QUEUE)
    assert (await ask("queue.purge", name="s", waiting=True))[0] == "invalid"


LATER = {"x-retry-delays": [60_000], "x-celery-eta": True, "x-max-length": 2}


async def test_purging_takes_what_waits_for_a_queue_only_where_it_is_said(site, ask):
    client = Client(site.stage).open()
    client.declare("q", durable=True, arguments={**LATER, "x-overflow": "reject-publish"})
    task = {"task": "t", "eta": "2999-01-01T00:00:00"}
    client.publish("q", b"1", b"2", headers=task)
    client.publish("q", b"1", b"2")
    fail_all(site)
    client.publish("q", b"3", b"4")
    held, failed = queue(site, "q").extension(EtaHold), queue(site, "q").extension(RetryTopic)
    assert await ask("queue.purge", name="q", waiting=False) == 2
    assert (held.pending_count, failed.pending_count) == (2, 2)
    client.publish("q", b"5", b"6")
    site.stage.advance(61)  # back, to a queue that is full
    assert queue(site, "q").message_count == 2
    assert await ask("queue.purge", name="q", waiting=True) == 6
    site.stage.advance(61)
    assert (held.pending_count, failed.pending_count, queue(site, "q").message_count) == (0, 0, 0)


def fail_all(site):
    """Let a consumer reject what is ready."""
    while (got := queue(site, "q").get()) is not None:
        queue(site, "q").discard([(got[0], got[0] + 1)])
    site.stage.run()


async def test_exchanges_and_bindings_come_and_go(site, ask):
    vhost = site.broker.vhosts["/"]
    assert await ask("exchange.declare", name="x", arguments={}, **EXCHANGE) is None
    await ask("exchange.declare", name="y", arguments={}, **EXCHANGE)
    await ask("queue.declare", name="q", **QUEUE)
    assert await ask("binding.declare", destination="q", **BINDING) is None
    to_exchange = {**BINDING, "destination_type": "exchange"}
    assert await ask("binding.declare", destination="y", **to_exchange) is None
    assert len(vhost.exchanges["x"].outgoing) == 2
    assert (await ask("exchange.delete", name="x", if_unused=True))[0] == "invalid"
    assert await ask("binding.delete", destination="q", **BINDING) is True
    assert await ask("binding.delete", destination="q", **BINDING) is False  # it was not there
    assert await ask("binding.delete", destination="y", **to_exchange) is True
    assert await ask("exchange.delete", name="x", if_unused=True) is None
    assert "x" not in vhost.exchanges
    assert (await ask("exchange.delete", name="x", if_unused=True))[0] == "not_found"
    assert (await ask("exchange.delete", name="amq.topic", if_unused=False))[0] == "forbidden"
    wrong = {**BINDING, "destination_type": "star"}
    assert (await ask("binding.declare", destination="q", **wrong))[0] == "invalid"


async def test_a_connection_is_closed_with_a_reason(site, ask):
    client = Client(site.stage).open()
    [connection] = site.broker.connections
    name = str(connection.describe().endpoints)
    assert await ask_connection(site, name, "go home" * 100) is True
    [(_, close)] = client.received()
    assert close.name == "Connection.Close"
    assert close.reply_code == 320
    assert close.reply_text.startswith("CONNECTION_FORCED - go home")
    assert await ask_connection(site, "nobody", None) == "not_found"


async def ask_connection(site, name, reason):
    request = {"operation": "connection.close", "parameters": {"name": name, "reason": reason}}
    answer = await perform(site.context, request, COMMAND_LINE)
    return answer["ok"] or answer["error"]


async def test_an_unknown_host_is_none(ask):
    answer = await ask("queue.purge", name="q", vhost="no", waiting=False)
    assert answer == ("not_found", "no vhost 'no'")
