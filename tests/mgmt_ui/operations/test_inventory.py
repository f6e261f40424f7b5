"""Objects of a running node, as lists and one by one."""

import pytest

from leveret.mgmt_ui.control import COMMAND_LINE
from leveret.mgmt_ui.operations.dispatcher import perform
from tests.support.client import Client
from tests.support.site import Site

PAGE = {"limit": 100, "reverse": False}


@pytest.fixture
def site():
    return Site()


@pytest.fixture
def ask(site):
    async def ask(operation, **parameters):
        request = {"operation": operation, "parameters": parameters}
        answer = await perform(site.context, request, COMMAND_LINE)
        return answer["result"] if answer["ok"] else (answer["error"], answer["explanation"])

    return ask


@pytest.fixture
def client(site):
    return Client(site.stage).open()


def names(page):
    return [row["name"] for row in page["rows"]]


async def test_queues_in_the_order_of_their_names_page_by_page(client, ask):
    for name in ("c", "a", "d", "b"):
        client.declare(name)
    page = await ask("queue.list", **{**PAGE, "limit": 3})
    assert names(page) == ["a", "b", "c"]
    assert page["after"] == ["/", "c"]
    page = await ask("queue.list", **PAGE, after=page["after"])
    assert (names(page), page["after"]) == (["d"], None)


async def test_queues_by_a_part_of_their_names_and_by_virtual_host(client, ask):
    client.declare("orders")
    client.declare("bills")
    assert names(await ask("queue.list", **PAGE, name="ORD")) == ["orders"]
    assert len(names(await ask("queue.list", **PAGE, vhost="/"))) == 2
    assert await ask("queue.list", **PAGE, vhost="no") == ("not_found", "no vhost 'no'")


async def test_queues_by_what_they_hold(client, ask):
    for count, name in enumerate(("a", "b", "c")):
        client.declare(name)
        client.publish(name, *[b"m"] * count)
    fullest = await ask("queue.list", limit=2, reverse=True, sort="messages_ready")
    assert names(fullest) == ["c", "b"]
    emptiest = await ask("queue.list", limit=2, reverse=False, sort="messages_ready")
    assert names(emptiest) == ["a", "b"]
    by_name = await ask("queue.list", limit=2, reverse=True, sort="name")
    assert names(by_name) == ["c", "b"]
    assert len(names(await ask("queue.list", **PAGE, sort="no column"))) == 3
    refused = await ask("queue.list", **PAGE, sort="name", after=["/", "a"])
    assert refused[0] == "invalid"
    assert (await ask("queue.list", **PAGE, after=5))[0] == "invalid"


async def test_one_queue(client, ask):
    client.declare("q")
    client.publish("q", b"m")
    shown = await ask("queue.show", vhost="/", name="q")
    assert (shown["name"], shown["messages_ready"]) == ("q", 1)
    assert (await ask("queue.show", vhost="/", name="no"))[0] == "not_found"


async def test_exchanges(ask):
    assert "amq.topic" in names(await ask("exchange.list", **PAGE))
    assert names(await ask("exchange.list", **PAGE, name="fanout")) == ["amq.fanout"]
    assert (await ask("exchange.show", vhost="/", name="amq.fanout"))["type"] == "fanout"
    assert (await ask("exchange.show", vhost="/", name="no"))[0] == "not_found"


async def test_bindings_from_and_to(client, ask):
    client.declare("q")
    client.declare("r")
    for queue in ("q", "r"):
        await ask(
            "binding.declare",
            vhost="/",
            source="amq.topic",
            destination=queue,
            destination_type="queue",
            routing_key="k",
            arguments={},
        )
    found = (await ask("binding.list", **PAGE, source="amq.topic"))["rows"]
    assert [row["destination"] for row in found] == ["q", "r"]
    found = (await ask("binding.list", **PAGE, destination="q"))["rows"]
    assert [row["source"] for row in found] == ["", "amq.topic"]


async def test_connections(client, ask):
    (row,) = (await ask("connection.list", **PAGE))["rows"]
    assert (row["user"], row["vhost"]) == ("guest", "/")
    assert names(await ask("connection.list", **PAGE, user="nobody")) == []
    assert names(await ask("connection.list", **PAGE, vhost="/", user="guest")) == [row["name"]]
    assert await ask("connection.show", name=row["name"]) == row
    assert (await ask("connection.show", name="no"))[0] == "not_found"


async def test_channels_and_consumers(client, ask):
    client.declare("q")
    client.publish("q", b"1", b"2")
    client.consume("q")
    (channel,) = (await ask("channel.list", **PAGE))["rows"]
    assert channel["name"].endswith(" (1)")
    assert (channel["consumer_count"], channel["messages_unacknowledged"]) == (1, 2)
    assert (channel["confirm"], channel["transactional"]) == (False, False)
    assert names(await ask("channel.list", **PAGE, user="nobody")) == []
    (consumer,) = (await ask("consumer.list", **PAGE, queue="q"))["rows"]
    assert consumer["queue"] == {"name": "q", "vhost": "/"}
    assert consumer["channel_details"]["name"] == channel["name"]
    assert consumer["messages_unacknowledged"] == 2
    assert (await ask("consumer.list", **PAGE, queue="r"))["rows"] == []


async def test_a_stopped_node_has_none_of_it(site, ask):
    object.__setattr__(site.context, "broker", None)
    code, explanation = await ask("queue.list", **PAGE)
    assert (code, "no node is running" in explanation) == ("not_running", True)
