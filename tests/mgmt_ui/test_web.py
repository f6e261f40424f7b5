"""The HTTP API, asked in-process."""

import asyncio

import pytest
from pamqp import commands

from leveret import __version__
from leveret.core.alarms import Resource
from leveret.mgmt_ui import web
from leveret.mgmt_ui.api import callers
from leveret.mgmt_ui.routes import LazyRoute
from leveret.ports.definitions import UserDefinition, VhostDefinition
from tests.support.client import Client
from tests.support.site import Site, behind


@pytest.fixture
def site():
    return Site()


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


# Who may ask.


async def test_nobody_is_asked_for_a_password(site):
    response = await site.get("/api/whoami", None)
    assert response.status_code == 401
    assert response.headers["www-authenticate"].startswith("Basic realm=")
    assert response.json() == {"error": "not_authorized", "reason": "Not_Authorized"}


@pytest.mark.parametrize(
    "header", ["Basic", "Basic %%%", "Basic Z3Vlc3Q=", "Bearer Z3Vlc3Q6Z3Vlc3Q="]
)
async def test_what_is_no_basic_authorization(site, header):
    answer = await site.error("/api/whoami", None, headers={"authorization": header})
    assert answer == (401, "not_authorized", "Not_Authorized")


async def test_wrong_password_and_unknown_user_are_answered_alike_and_late():
    site = Site(login_delay_seconds=0.05)
    loop = asyncio.get_running_loop()
    site.stage.access.put_user(UserDefinition("known", "hash of something else", ("management",)))
    for user in ("known", "unknown"):
        asked = loop.time()
        assert await site.error("/api/whoami", user) == (401, "not_authorized", "Not_Authorized")
        assert loop.time() - asked >= 0.05


async def test_strangers_learn_nothing_from_bad_parameters(site):
    assert (await site.get("/api/queues?page=x", None)).status_code == 401
    assert (await site.get("/api/queues?page=x")).status_code == 400


async def test_nothing_of_a_request_runs_in_another_thread(site, monkeypatch):
    def refuse(*_, **__):
        raise AssertionError("the broker is not to be looked at from a thread")

    monkeypatch.setattr("anyio.to_thread.run_sync", refuse)
    for path in ("/api/overview", "/api/queues?page=1", "/api/health/checks/alarms"):
        await site.json(path)


async def test_who_i_am(site):
    assert await site.json("/api/whoami") == {
        "name": "guest",
        "tags": ["administrator"],
        "is_internal_user": True,
    }


async def test_guest_asks_from_this_machine_only(site, caplog):
    answer = await site.error("/api/whoami", peer="192.0.2.1")
    assert answer == (401, "not_authorised", "User can only log in via localhost")
    assert "HTTP access denied: user 'guest'" in caplog.text
    site.add_user("remote", "monitoring")
    assert (await site.get("/api/whoami", "remote", peer="192.0.2.1")).status_code == 200


@pytest.mark.parametrize("tag", sorted(callers.MANAGERS))
async def test_management_tags_let_in(site, tag):
    site.add_user("u", "other", tag)
    assert (await site.json("/api/whoami", "u"))["tags"] == ["other", tag]


@pytest.mark.covers("B-441")
async def test_others_are_kept_out(site):
    site.add_user("u", "impersonator")
    assert await site.error("/api/overview", "u") == (
        401,
        "not_authorised",
        "Not management user",
    )


@pytest.mark.parametrize("path", ["/api/users", "/api/permissions"])
async def test_only_administrators_see_users(site, path):
    site.add_user("u", "monitoring")
    assert await site.error(path, "u") == (401, "not_authorised", "Not administrator user")
    assert await site.json(path)


async def test_contents_of_a_vhost_are_for_who_may_enter_it(site):
    site.broker.add_vhost(VhostDefinition("v"))
    site.add_user("u", "management")
    site.permit("u", "v")
    site.add_user("m", "monitoring")
    assert {x["vhost"] for x in await site.json("/api/exchanges", "u")} == {"v"}
    assert await site.json("/api/exchanges", "m") == []
    assert {x["vhost"] for x in await site.json("/api/exchanges")} == {"/", "v"}
    assert await site.error("/api/queues/%2F", "u") == (
        401,
        "not_authorised",
        "User not authorised to access virtual host",
    )
    assert [x["name"] for x in await site.json("/api/vhosts", "u")] == ["v"]
    assert [x["name"] for x in await site.json("/api/vhosts", "m")] == ["/", "v"]


# What there is.


@pytest.mark.covers("B-443")
async def test_overview(site, amqp):
    overview = await site.json("/api/overview")
    configuration = site.stage.configuration
    assert overview["product_name"] == configuration.product
    versions = {overview[f"{of}_version"] for of in ("rabbitmq", "product", "management")}
    assert versions == {configuration.version}
    assert overview["leveret_version"] == __version__
    assert overview["cluster_name"] == configuration.cluster_name
    assert overview["object_totals"] == {
        "channels": 1,
        "connections": 1,
        "consumers": 1,
        "exchanges": 8,
        "queues": 1,
    }
    totals = {name: n for name, n in overview["queue_totals"].items() if "details" not in name}
    assert totals == {
        "messages": 2,
        "messages_ready": 1,
        "messages_unacknowledged": 1,
    }
    assert [(x["protocol"], x["port"]) for x in overview["listeners"]] == [
        ("amqp", 5672),
        ("http", 15672),
    ]


@pytest.mark.covers("B-443")
async def test_overview_of_who_is_no_monitor(site, amqp):
    site.add_user("u", "management")
    overview = await site.json("/api/overview", "u")
    assert overview["object_totals"]["connections"] == 0
    assert overview["queue_totals"]["messages"] == 0
    assert "listeners" not in overview


@pytest.mark.covers("B-440", "B-443")
async def test_overview_without_statistics(site):
    overview = await site.json("/api/overview?disable_stats=true")
    assert "queue_totals" not in overview
    overview = await site.json("/api/overview?disable_stats=true&enable_queue_totals=true")
    assert overview["queue_totals"]["messages"] == 0
    assert await site.json("/api/overview?columns=queue_totals.messages") == {
        "queue_totals": {"messages": 0}
    }


async def test_queue(site, amqp):
    alone = await site.json("/api/queues/%2F/q")
    queue = (await site.json("/api/queues"))[0]
    assert queue == (await site.json("/api/queues/%2f"))[0]
    assert alone.keys() - queue.keys() == {"consumer_details", "deliveries"}
    assert {name: alone[name] for name in queue} == queue
    assert queue.pop("memory") > 1000
    assert queue.pop("message_stats")["publish"] == 2
    assert queue.pop("consumer_capacity") == queue.pop("consumer_utilisation") == 0.0
    queue = {name: value for name, value in queue.items() if "_details" not in name}
    assert queue == {
        "name": "q",
        "vhost": "/",
        "type": "classic",
        "durable": True,
        "auto_delete": False,
        "exclusive": False,
        "arguments": {"x-max-length": 5},
        "node": "leveret@test",
        "state": "running",
        "messages": 2,
        "messages_ready": 1,
        "messages_unacknowledged": 1,
        "messages_delayed": 0,
        "dead_letters_waiting": 0,
        "created_at": 1_700_000_000_000,
        "created_by": "guest",
        "messages_waiting_for_retry": 0,
        "messages_waiting_for_eta": 0,
        "consumers": 1,
        "policy": None,
        "operator_policy": None,
        "effective_policy_definition": {},
    }


@pytest.mark.covers("B-440")
async def test_queue_without_statistics(site, amqp):
    assert "messages" not in await site.json("/api/queues/%2F/q?disable_stats=true")
    totals = await site.json("/api/queues?disable_stats=true&enable_queue_totals=true")
    assert totals[0]["messages"] == 2
    assert "consumers" not in totals[0]


async def test_exclusive_queue_names_its_owner(site, amqp):
    amqp.declare("mine", exclusive=True)
    queue = await site.json("/api/queues/%2F/mine")
    assert queue["owner_pid_details"]["name"] == "127.0.0.1:50000 -> 127.0.0.1:5672"


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("DELETE", "/api/queues/%2F/mine", None),
        ("DELETE", "/api/queues/%2F/mine/contents", None),
        ("POST", "/api/bindings/%2F/e/amq.fanout/q/mine", {}),
        ("PUT", "/api/leveret/queues/%2F/mine/pause", {}),
        ("PATCH", "/api/leveret/queues/%2F/mine", {"name": "stolen"}),
    ],
)
async def test_exclusive_queue_is_nobody_elses(site, amqp, method, path, body):
    amqp.declare("mine", exclusive=True)
    site.add_user("other", "management")
    site.permit("other", "/")
    refused = await site.ask(method, path, body, "other")
    assert (refused.status_code, refused.json()["reason"]) == (401, "Not administrator user")


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("PUT", f"/api/queues/%2F/{'n' * 256}", {}),
        ("PUT", f"/api/exchanges/%2F/{'n' * 256}", {}),
        ("POST", "/api/bindings/%2F/e/amq.fanout/q/q", {"routing_key": "n" * 256}),
    ],
)
async def test_names_that_no_client_could_say_are_refused(site, amqp, method, path, body):
    refused = await site.ask(method, path, body)
    assert (refused.status_code, "at most 255 bytes" in refused.json()["reason"]) == (400, True)


async def test_queues_come_in_pages(site, amqp):
    for number in range(5):
        amqp.declare(f"page-{number}")
    page = await site.json("/api/queues?page=2&page_size=2&name=PAGE&columns=name")
    assert page["items"] == [{"name": "page-2"}, {"name": "page-3"}]
    assert (page["total_count"], page["filtered_count"], page["page_count"]) == (6, 5, 3)
    assert (await site.json("/api/queues?sort=messages&sort_reverse=true"))[0]["name"] == "q"


async def test_names_with_slashes_and_percent_signs(site):
    site.broker.vhosts["/"].declare_queue(
        "a/b%2F c", durable=False, exclusive=False, auto_delete=False, arguments={}, owner=None
    )
    assert (await site.json("/api/queues/%2F/a%2Fb%252F%20c"))["name"] == "a/b%2F c"


async def test_exchanges_and_bindings(site, amqp):
    amqp.call(commands.Queue.Bind(queue="q", exchange="amq.topic", routing_key="k.#"))
    default = await site.json("/api/exchanges/%2F/amq.default?disable_stats=true")
    assert default == {
        "name": "",
        "vhost": "/",
        "type": "direct",
        "durable": True,
        "auto_delete": False,
        "internal": False,
        "arguments": {},
    }
    assert {x["name"] for x in await site.json("/api/exchanges/%2F")} >= {"", "amq.topic"}
    assert await site.json("/api/bindings") == await site.json("/api/bindings/%2F")
    assert [
        (x["source"], x["routing_key"], x["properties_key"])
        for x in await site.json("/api/bindings")
    ] == [
        ("", "q", "q"),
        ("amq.topic", "k.#", "k.%23"),
    ]


@pytest.mark.covers("B-012")
async def test_connections(site, amqp):
    amqp.connection.client_properties["connection_name"] = "orders"
    (connection,) = await site.json("/api/connections")
    assert connection["client_properties"]["connection_name"] == "orders"
    assert connection["name"] == "127.0.0.1:50000 -> 127.0.0.1:5672"
    assert (connection["user"], connection["vhost"], connection["channels"]) == ("guest", "/", 1)
    assert (connection["state"], connection["auth_mechanism"]) == ("running", "PLAIN")
    assert connection["connected_at"] == site.stage.now
    site.broker.alarms.set(Resource.DISK, low=True)
    assert (await site.json("/api/connections"))[0]["state"] == "blocked"
    site.add_user("u", "management")
    assert await site.json("/api/connections", "u") == []
    amqp.transport.lose()
    assert await site.json("/api/connections") == []


async def test_vhosts_users_and_permissions(site, amqp):
    (vhost,) = await site.json("/api/vhosts")
    assert (vhost["name"], vhost["messages"], vhost["cluster_state"]) == (
        "/",
        2,
        {"leveret@test": "running"},
    )
    assert [(u["name"], u["tags"]) for u in await site.json("/api/users")] == [
        ("guest", ["administrator"])
    ]
    assert await site.json("/api/permissions") == [
        {"user": "guest", "vhost": "/", "configure": ".*", "write": ".*", "read": ".*"}
    ]


async def test_a_slash_at_the_end_means_nothing(site):
    assert await site.json("/api/queues/") == []
    assert await site.json("/api/queues/%2F/") == []


# What there is not.


@pytest.mark.covers("B-441")
@pytest.mark.parametrize(
    ("path", "reason"),
    [
        ("/api/nonsense", "Object Not Found"),
        ("/api/queues//", "Object Not Found"),
        ("/api/queues/none", "vhost_not_found"),
        ("/api/bindings/none", "vhost_not_found"),
        ("/api/queues/%2F/none", "queue_not_found"),
        ("/api/exchanges/%2F/none", "exchange_not_found"),
        ("/api/queues/%FF", "vhost_not_found"),
    ],
)
async def test_missing_things(site, path, reason):
    assert await site.error(path) == (404, "not_found", reason)


async def test_beside_the_api_there_are_pages(site):
    response = await site.get("/overview", None)
    assert response.status_code == 303
    assert response.headers["location"] == "/login?wanted=%2Foverview"


@pytest.mark.parametrize("path", ["/apiary", "/cli/rabbitmqadmin", "/cli", "/queues/a/b/c/d/e"])
async def test_what_is_no_page_is_not_there_for_anybody(site, path):
    """A program that follows redirects would take the sign-in page for the file that it wants."""
    response = await site.get(path, None, follow_redirects=True)
    assert response.status_code == 404
    assert "There is no page at this address." in response.text
    assert (await site.get(path, None, method="HEAD")).status_code == 404
    assert (await site.get("/overview", None, method="DELETE")).status_code == 405


async def test_other_methods(site):
    assert (await site.get("/api/queues", method="HEAD")).status_code == 200
    response = await site.get("/api/queues", method="DELETE")
    assert (response.status_code, response.json()["error"]) == (405, "method_not_allowed")


async def test_mistake_of_ours_is_answered(site, monkeypatch):
    monkeypatch.setattr(site.stage.access, "users", lambda: 1 / 0)
    assert (await site.error("/api/users"))[:2] == (500, "internal_server_error")


# Health.


async def check(site, name, user="guest"):
    response = await site.get(f"/api/health/checks/{name}", user)
    return response.status_code, response.json()


@pytest.mark.parametrize("name", ["is-in-service", "ready-to-serve-clients"])
async def test_orchestrators_ask_without_a_password(site, name):
    assert await check(site, name, None) == (200, {"status": "ok"})
    site.serving = False
    status, body = await check(site, name, None)
    assert (status, body["status"]) == (503, "failed")


async def test_full_node_is_not_ready():
    site = Site(connections_max=1)
    Client(site.stage).open()
    assert await check(site, "ready-to-serve-clients") == (
        503,
        {"status": "failed", "reason": "node connection limit is reached", "connections": 1},
    )


@pytest.mark.parametrize("name", ["alarms", "local-alarms"])
async def test_alarms(site, name):
    assert await check(site, name) == (200, {"status": "ok"})
    site.broker.alarms.set(Resource.MEMORY, low=True)
    status, body = await check(site, name)
    assert status == 503
    assert body["alarms"] == [{"node": "leveret@test", "resource": "memory"}]
    assert (await check(site, name, None))[0] == 401


async def test_virtual_hosts(site):
    site.administration.add_vhost("v")
    assert await check(site, "virtual-hosts") == (200, {"status": "ok"})
    del site.broker.vhosts["v"]
    status, body = await check(site, "virtual-hosts")
    assert (status, body["virtual-hosts"]) == (503, ["v"])


async def test_listeners(site):
    assert await check(site, "port-listener/5672") == (200, {"status": "ok", "port": 5672})
    assert await check(site, "port-listener/1") == (
        503,
        {
            "status": "failed",
            "reason": "No active listener",
            "missing": 1,
            "ports": [5672, 15672],
        },
    )
    assert (await check(site, "protocol-listener/AMQP0-9-1"))[1]["protocol"] == "amqp"
    assert (await check(site, "protocol-listener/management"))[1]["protocol"] == "http"
    status, body = await check(site, "protocol-listener/mqtt")
    assert (status, body["missing"], body["protocols"]) == (503, "mqtt", ["amqp", "http"])
    for port in ("x", "-1", "70000", "²", "0" * 9 + "70000", "1" * 5000, "0" * 5000):
        answer = await site.error(f"/api/health/checks/port-listener/{port}")
        assert answer == (400, "bad_request", "Invalid port")


# What the event loop is held for.


def test_no_route_is_analysed_at_the_start(site):
    """FastAPI would analyse them one by one, or, by `include_router`, all in the first request."""
    api = behind(web.create_app(site.node), "_api").routes
    metrics = behind(web.create_metrics_app(site.node), "routes")
    for routes in (api, metrics):
        assert len(routes) >= 4
        assert all(isinstance(route, LazyRoute) for route in routes)
