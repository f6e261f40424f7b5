"""Connections, channels, exchanges, queues and virtual hosts: what is shown, and what is done."""

import json
from asyncio import sleep
from functools import partial

import pytest
from pamqp import commands

from leveret.core.statistics.sampler import Sampler
from leveret.ports.counters import RECV_OCT
from leveret.ports.definitions import PermissionDefinition, VhostDefinition
from tests.support.browser import Browser
from tests.support.client import Client

HOSTILE = ("<script>alert(1)</script>", '" onload="alert(1)', "'><img src=x onerror=alert(1)>")


@pytest.fixture
def amqp(site):
    """A client with a queue `q` of two messages, one of them delivered and not acknowledged."""
    client = Client(site.stage).open()
    client.declare("q", durable=True, arguments={"x-max-length": 5})
    client.publish("q", b"1", b"2")
    client.prefetch(1)
    client.consume("q")
    client.deliveries()
    return client


def connection_path(site):
    name = str(next(iter(site.broker.connections)).describe().endpoints)
    return "/connections/" + name.replace(" ", "%20").replace(":", "%3A").replace(">", "%3E")


async def test_connections(site, guest, amqp):
    text = await guest.text("/connections")
    assert connection_path(site) in text
    text = await guest.text(connection_path(site))
    assert "Close the connection" in text
    assert 'href="/queues/%2F/q"' in text  # of its consumer


async def test_rates_of_connections(site, guest, amqp):
    sampler = Sampler(
        site.broker.vhosts,
        site.broker.connections,
        site.broker.statistics,
        5_000,
        histories_max=100,
        pause=partial(sleep, 0),
    )
    await sampler.sample(5_000)
    [connection] = site.broker.connections
    connection.counters.count(RECV_OCT, 10_240)  # which its socket would
    amqp.publish("q", b"3")
    await sampler.sample(10_000)
    text = await guest.text("/connections?sort=receive_rate&sort_reverse=true")
    assert "2.0\u00a0KiB/s" in text
    assert '<td class="number">0.2/s</td>' in text
    text = await guest.text(connection_path(site))
    assert "2.0\u00a0KiB/s, 0.2/s messages" in text


@pytest.mark.covers("C-214")
async def test_a_channel_tells_its_rates_over_time(site, guest, amqp):
    sampler = Sampler(
        site.broker.vhosts,
        site.broker.connections,
        site.broker.statistics,
        5_000,
        histories_max=100,
        pause=partial(sleep, 0),
    )
    await sampler.sample(5_000)
    amqp.send(commands.Basic.Ack(delivery_tag=1))
    amqp.received()
    await sampler.sample(10_000)
    path = connection_path(site) + "/channels/1"
    for other in ("/queues/%2F/q", "/channels", connection_path(site)):
        assert f'href="{path}"' in await guest.text(other)
    text = await guest.text(path)
    assert "Acknowledged 0.2" in text
    assert "Delivered 0.2" in text
    assert 'href="/queues/%2F/q"' in text  # of its consumer
    assert (await guest.get(f"{path}2")).status_code == 404
    site.add_user("u", "management")
    browser = Browser(site)
    await browser.sign_in("u")
    assert (await browser.get(path)).status_code == 404


async def test_closing_a_connection(site, guest, amqp):
    path = connection_path(site)
    answer = await guest.submit(f"{path}/close", reason="maintenance")
    assert (answer.status_code, answer.headers["location"]) == (303, "/connections")
    assert "was closed" in (await guest.notices())[0]
    assert not site.broker.connections
    assert (await guest.get(path)).status_code == 404


async def test_who_is_no_monitor_sees_and_closes_only_his_own(site, amqp):
    site.add_user("u", "management")
    browser = Browser(site)
    await browser.sign_in("u")
    path = connection_path(site)
    assert path not in await browser.text("/connections")
    assert "There are no channels" in await browser.text("/channels")
    assert (await browser.get(path)).status_code == 404
    assert (await browser.submit(f"{path}/close")).status_code == 404
    assert site.broker.connections


async def test_monitors_see_all_connections_and_close_their_own(site, amqp):
    site.add_user("m", "monitoring")
    browser = Browser(site)
    await browser.sign_in("m")
    path = connection_path(site)
    assert "Close the connection" not in await browser.text(path)
    assert (await browser.submit(f"{path}/close")).status_code == 403
    assert site.broker.connections


async def test_channels(guest, amqp):
    text = await guest.text("/channels")
    assert "(1)</a>" in text
    assert "Nothing matches the filter" in await guest.text("/channels?name=nobody")


async def test_queues(guest, amqp):
    text = await guest.text("/queues")
    assert '<a href="/queues/%2F/q">q</a>' in text
    for query in ("type=classic", "state=running", "vhost=%2F", "name=Q"):
        assert '<a href="/queues/%2F/q">q</a>' in await guest.text(f"/queues?{query}")
    for query in ("type=stream", "state=paused", "vhost=v", "name=z"):
        assert "Nothing matches the filter" in await guest.text(f"/queues?{query}")


async def test_one_queue(guest, amqp):
    text = await guest.text("/queues/%2F/q")
    assert 'data-figure="messages_unacknowledged">1</dd>' in text
    assert "x-max-length" in text
    assert "100\u00a0%" in text  # of its consumer's prefetch is used
    assert (await guest.get("/queues/%2F/nothing")).status_code == 404
    assert (await guest.get("/queues/nowhere/q")).status_code == 404


async def test_declaring_a_queue(site, guest):
    fields = {"vhost": "/", "name": "a b", "type": "quorum", "durable": "1"}
    answer = await guest.submit("/queues", **fields, arguments='{"x-max-length": 7}')
    assert (answer.status_code, answer.headers["location"]) == (303, "/queues/%2F/a%20b")
    definition = site.broker.vhosts["/"].queues["a b"].definition
    assert definition.durable
    assert definition.arguments == {"x-max-length": 7, "x-queue-type": "quorum"}
    assert await guest.notices() == ["Queue a b in / was declared."]


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ("{", "not a JSON object"),
        ("[]", "not a JSON object"),
        ("[" * 50_000, "not a JSON object"),
        ('{"x-max-length": "many"}', "x-max-length"),
    ],
)
async def test_form_that_makes_no_sense_is_shown_again(site, guest, arguments, reason):
    answer = await guest.submit("/queues", vhost="/", name="mine", arguments=arguments)
    assert answer.status_code == 400
    assert reason in answer.text
    assert 'name="name" value="mine"' in answer.text
    assert "mine" not in site.broker.vhosts["/"].queues


async def test_purging_and_deleting(site, guest, amqp):
    await guest.submit("/queues/%2F/q/purge")
    assert site.stage.queue("q").message_count == 0
    answer = await guest.submit("/queues/%2F/q/delete", if_unused="1")
    assert answer.headers["location"] == "/queues/%2F/q"
    assert "were deleted" in (notices := await guest.notices())[0]
    assert "in use" in notices[1]
    answer = await guest.submit("/queues/%2F/q/delete")
    assert answer.headers["location"] == "/queues"
    assert "q" not in site.broker.vhosts["/"].queues
    site.stage.run()


async def test_deleting_where_the_node_forbids_it_over_http(site, amqp):
    site.forbid_deletion()
    guest = Browser(site)
    await guest.sign_in("guest")
    assert "Delete the queue" not in await guest.text("/queues/%2F/q")
    assert "Delete the virtual host" not in await guest.text("/vhosts/%2F")
    policy = {"vhost": "/", "name": "p", "pattern": "", "arguments": '{"expires": 1}'}
    for path, fields in (
        ("/queues/%2F/q/delete", {}),
        ("/queues/%2F/q/arguments", {"shown": "{}", "arguments": '{"x-expires": 1}'}),
        ("/vhosts/%2F/delete", {}),
        ("/policies", policy),
    ):
        assert (await guest.submit(path, **fields)).status_code == 403, path
    assert "x-expires" not in site.broker.vhosts["/"].queues["q"].definition.arguments


async def test_pausing_and_resuming(site, guest, amqp):
    await guest.submit("/queues/%2F/q/pause", publishing="1")
    assert site.stage.queue("q").definition.paused == "all"
    text = await guest.text("/queues/%2F/q")
    assert "Resume" in text
    assert "Pause the queue" not in text
    await guest.submit("/queues/%2F/q/resume")
    assert not site.stage.queue("q").definition.paused


async def test_exchanges(guest):
    text = await guest.text("/exchanges")
    assert '<a href="/exchanges/%2F/amq.default">(default exchange)</a>' in text
    assert "amq.topic" not in await guest.text("/exchanges?type=fanout")


async def test_declaring_binding_and_deleting_an_exchange(site, guest, amqp):
    exchanges = site.broker.vhosts["/"].exchanges
    fields = {"vhost": "/", "name": "x", "type": "topic", "durable": "1"}
    answer = await guest.submit("/exchanges", **fields)
    assert answer.headers["location"] == "/exchanges/%2F/x"
    binding = {
        "vhost": "/",
        "source": "x",
        "destination": "q",
        "destination_type": "queue",
        "routing_key": "a.#",
        "arguments": '{"n": 1}',
    }
    answer = await guest.submit("/bindings", **binding, back="queue")
    assert answer.headers["location"] == "/queues/%2F/q"
    assert len(exchanges["x"].outgoing) == 1
    text = await guest.text("/exchanges/%2F/x")
    assert '<a href="/queues/%2F/q">' in text.partition("<svg")[2]
    assert "a.#" in text
    assert "a.#" in await guest.text("/queues/%2F/q")
    answer = await guest.submit("/bindings/delete", **binding, back="exchange")
    assert answer.headers["location"] == "/exchanges/%2F/x"
    assert not exchanges["x"].outgoing
    await guest.submit("/exchanges/%2F/x/delete")
    assert "x" not in exchanges


async def test_binding_what_is_not_there(guest):
    fields = {"vhost": "/", "source": "amq.topic", "destination": "no", "routing_key": "k"}
    await guest.submit("/bindings", **fields, destination_type="queue", back="exchange")
    assert "no queue 'no'" in (await guest.notices())[0]


async def test_system_exchanges_cannot_be_deleted(site, guest):
    assert "Delete the exchange" not in await guest.text("/exchanges/%2F/amq.topic")
    answer = await guest.submit("/exchanges/%2F/amq.topic/delete")
    assert "amq.topic" in site.broker.vhosts["/"].exchanges
    assert answer.status_code in {303, 403}


async def test_virtual_hosts(site, guest, amqp):
    assert '<a href="/vhosts/%2F">/</a>' in await guest.text("/vhosts")
    answer = await guest.submit("/vhosts", name="v w", tags="a, b", description="of a test")
    assert answer.headers["location"] == "/vhosts/v%20w"
    definition = site.broker.vhosts["v w"].definition
    assert (definition.tags, definition.description) == (("a", "b"), "of a test")
    assert site.stage.access.may_enter("guest", "v w")
    assert "of a test" in await guest.text("/vhosts/v%20w")
    answer = await guest.submit("/vhosts", name="v w")
    assert "exists already" in answer.text
    await guest.submit("/vhosts/v%20w/protect", on="1")
    assert "Delete the virtual host" not in await guest.text("/vhosts/v%20w")
    await guest.submit("/vhosts/v%20w/protect", on="")
    await guest.submit("/vhosts/v%20w/delete")
    assert "v w" not in site.broker.vhosts


WRITES = (
    ("/queues", {"vhost": "/", "name": "new"}),
    ("/queues/%2F/q/purge", {}),
    ("/queues/%2F/q/delete", {}),
    ("/queues/%2F/q/pause", {}),
    ("/queues/%2F/q/resume", {}),
    ("/exchanges", {"vhost": "/", "name": "new", "type": "direct"}),
    ("/exchanges/%2F/amq.topic/delete", {}),
    (
        "/bindings",
        {"vhost": "/", "source": "amq.topic", "destination": "q", "destination_type": "queue"},
    ),
    (
        "/bindings/delete",
        {"vhost": "/", "source": "amq.topic", "destination": "q", "destination_type": "queue"},
    ),
    ("/vhosts", {"name": "v"}),
    ("/vhosts/%2F/describe", {}),
    ("/vhosts/%2F/trace", {"on": "1"}),
    ("/vhosts/%2F/protect", {"on": "1"}),
    ("/vhosts/%2F/delete", {}),
)


@pytest.mark.parametrize(("path", "fields"), WRITES)
async def test_what_somebody_may_not_do_is_refused(site, amqp, path, fields):
    site.add_user("reader", "policymaker")
    site.stage.access.put_permission(PermissionDefinition("/", "reader", "^$", "^$", "^$"))
    browser = Browser(site)
    await browser.sign_in("reader")
    before = site.broker.vhosts["/"].definitions()
    assert (await browser.submit(path, **fields)).status_code == 403
    assert site.broker.vhosts["/"].definitions() == before


@pytest.mark.parametrize(("path", "fields"), WRITES)
async def test_forms_without_the_token_are_refused(guest, amqp, path, fields):
    assert (await guest.submit(path, **{**fields, "csrf_token": ""})).status_code == 403


@pytest.mark.parametrize(("path", "fields"), WRITES)
async def test_strangers_are_refused(browser, path, fields):
    assert (await browser.submit(path, **fields)).status_code == 401


async def test_what_somebody_may_not_do_is_not_offered(site, amqp):
    site.add_user("reader", "management")
    site.stage.access.put_permission(PermissionDefinition("/", "reader", "^$", "^$", "^$"))
    browser = Browser(site)
    await browser.sign_in("reader")
    text = await browser.text("/queues/%2F/q")
    for verb in ("Purge", "Delete", "Pause", "Bind it"):
        assert f"{verb}" not in text, verb
    assert "Add a virtual host" not in await browser.text("/vhosts")
    assert "Protect" not in await browser.text("/vhosts/%2F")


async def test_other_virtual_hosts_are_hidden(site, amqp):
    site.broker.add_vhost(VhostDefinition("v"))
    site.add_user("u", "management")
    site.permit("u", "v")
    browser = Browser(site)
    await browser.sign_in("u")
    assert "There are no queues yet" in await browser.text("/queues")
    assert (await browser.get("/queues/%2F/q")).status_code == 403
    assert (await browser.get("/live/queues/%2F/q")).status_code == 403
    assert (await browser.get("/exchanges/%2F/amq.topic")).status_code == 403
    assert (await browser.get("/vhosts/%2F")).status_code == 404


@pytest.mark.parametrize("name", HOSTILE)
async def test_names_are_no_markup(site, guest, name):
    Client(site.stage).open()
    arguments = json.dumps({"x-dead-letter-routing-key": name, "x-dead-letter-exchange": "x"})
    fields = {"vhost": "/", "name": name, "arguments": arguments, "durable": "1"}
    assert (await guest.submit("/queues", **fields)).status_code == 303
    fields = {"vhost": "/", "name": name, "type": "fanout"}
    answer = await guest.submit("/exchanges", **fields)
    exchange = answer.headers["location"]
    binding = {"vhost": "/", "source": name, "destination": name, "destination_type": "queue"}
    answer = await guest.submit("/bindings", **binding, routing_key=name, back="queue")
    assert (await guest.submit("/vhosts", name=name, description=name)).status_code == 303
    queue = answer.headers["location"]
    pages = ["/queues", "/exchanges", "/vhosts", queue, exchange, "/connections", "/channels"]
    for path in pages:
        text = await guest.text(path)
        assert "<script>alert" not in text
        assert "<img src=x" not in text
        assert '" onload="' not in text
