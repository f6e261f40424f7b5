"""Queues, exchanges, bindings and connections, changed by HTTP as RabbitMQ's tools change them."""

import pytest
from pamqp import commands

from leveret.mgmt_ui.control import COMMAND_LINE
from leveret.mgmt_ui.operations.dispatcher import perform
from leveret.ports.definitions import PermissionDefinition
from tests.support.client import Client
from tests.support.site import Site

Q, X, B = "/api/queues/%2F/", "/api/exchanges/%2F/", "/api/bindings/%2F/e/"


@pytest.fixture
def site():
    site = Site()
    yield site
    site.stage.run()  # logs are deleted in the background


async def status(site, method, path, body=None, user="guest", **options):
    return (await site.ask(method, path, body, user, **options)).status_code


async def reason(site, method, path, body=None, user="guest"):
    answer = await site.ask(method, path, body, user)
    return answer.status_code, answer.json()["reason"]


@pytest.mark.covers("B-441")
async def test_a_queue_is_declared_again_and_deleted(site):
    body = {"durable": True, "arguments": {"x-max-length": 5}}
    assert await status(site, "PUT", Q + "q", body) == 201
    assert await status(site, "PUT", Q + "q", body) == 204
    row = await site.json(Q + "q")
    assert (row["durable"], row["arguments"]) == (True, {"x-max-length": 5})
    code, why = await reason(site, "PUT", Q + "q", {"durable": False})
    assert (code, why[:48]) == (400, "inequivalent arg 'durable' for queue 'q' in vhost"[:48])
    assert await status(site, "DELETE", Q + "q") == 204
    assert await reason(site, "DELETE", Q + "q") == (404, "queue_not_found")


@pytest.mark.parametrize(
    "body",
    [
        {"durable": "perhaps"},
        {"durable": 1},
        {"arguments": 5},
        {"arguments": {"x-message-ttl": "soon"}},
        {"type": 7},
        [],
    ],
)
async def test_what_no_queue_can_be(site, body):
    assert await status(site, "PUT", Q + "q", body) == 400


async def test_conditions_on_deletion(site):
    client = Client(site.stage).open()
    client.declare("q", durable=True)
    client.publish("q", b"1")
    assert await status(site, "DELETE", Q + "q?if-empty=true") == 400
    client.consume("q")
    assert await status(site, "DELETE", Q + "q?if-unused=true") == 400
    assert await status(site, "DELETE", Q + "q?if-unused=maybe") == 400
    assert await status(site, "DELETE", Q + "q/contents") == 204
    assert await status(site, "DELETE", Q + "q?if-empty=false&if-unused=false") == 204


async def test_deletion_by_http_can_be_switched_off():
    site = Site()
    site.forbid_deletion()
    assert await status(site, "PUT", Q + "q") == 201
    code, why = await reason(site, "DELETE", Q + "q")
    assert (code, "leveret queue delete" in why) == (403, True)
    assert await status(site, "DELETE", Q + "q/contents") == 204


def expiring(definition):
    """Documents with a policy of that definition, and with an operator policy."""
    policy = {"pattern": "", "definition": definition}
    named = {"vhost": "/", "name": "p"}
    operators = {**named, "component": "operator_policy", "value": policy}
    return [{"policies": [{**named, **policy}]}, {"parameters": [operators]}]


@pytest.mark.parametrize(
    ("method", "path", "body", "command"),
    [
        ("DELETE", "/api/vhosts/%2F", None, "vhost delete"),
        ("PATCH", f"/api/leveret{Q[4:]}q", {"arguments": {"x-expires": 1}}, "queue change"),
        *(
            ("PUT", f"/api/{kind}/%2F/p", {"pattern": "", "definition": {"expires": 1}}, command)
            for kind, command in (
                ("policies", "policy set"),
                ("operator-policies", "operator-policy set"),
            )
        ),
        *(
            ("POST", "/api/definitions", document, "definitions import")
            for document in [*expiring({"expires": 1}), *expiring([["expires", 1]])]
        ),
    ],
)
async def test_nor_does_anything_else_delete_queues_then(method, path, body, command):
    site = Site()
    site.forbid_deletion()
    assert await status(site, "PUT", Q + "q") == 201
    code, why = await reason(site, method, path, body)
    assert (code, why) == (
        403,
        f"queues are not deleted by HTTP on this node: use `leveret {command}`",
    )
    assert "/" in site.broker.vhosts
    assert site.administration.policies.select(operator=True) == []
    assert site.administration.policies.select(operator=False) == []


async def test_what_deletes_no_queue_is_left_alone():
    site = Site()
    site.forbid_deletion()
    assert await status(site, "PUT", Q + "q", {"arguments": {"x-expires": 60_000}}) == 201
    change = {"arguments": {"x-expires": None, "x-max-length": 5}}
    assert await status(site, "PATCH", f"/api/leveret{Q[4:]}q", change) == 204
    policy = {"pattern": "", "definition": {"max-length": 1}}
    assert await status(site, "PUT", "/api/policies/%2F/p", policy) == 201
    for document in ([], {"policies": 5}, {"policies": [5, {"definition": 5}], "parameters": None}):
        assert await status(site, "POST", "/api/definitions", document) == 400
    request = {"operation": "queue.delete"}
    request["parameters"] = {"vhost": "/", "name": "q", "if_empty": False, "if_unused": False}
    assert await perform(site.context, request, COMMAND_LINE) == {"ok": True, "result": 0}
    site.stage.run()


async def test_no_action_is_known(site):
    await site.ask("PUT", Q + "q")
    assert await reason(site, "POST", Q + "q/actions", {"action": "sync"}) == (
        400,
        "Unknown action: sync",
    )


@pytest.mark.covers("B-441")
async def test_an_exchange_is_declared_again_and_deleted(site):
    body = {"type": "topic", "durable": True, "arguments": {"alternate-exchange": "amq.fanout"}}
    assert await status(site, "PUT", X + "x", body) == 201
    assert await status(site, "PUT", X + "x", body) == 204
    assert (await site.json(X + "x"))["type"] == "topic"
    assert await status(site, "PUT", X + "x", {**body, "type": "direct"}) == 400
    assert await status(site, "PUT", X + "y", {"type": "sideways"}) == 400
    assert await status(site, "DELETE", X + "x") == 204
    assert await reason(site, "DELETE", X + "x") == (404, "exchange_not_found")


async def test_bindings_come_and_go(site):
    await site.ask("PUT", X + "x", {"type": "direct"})
    await site.ask("PUT", X + "y", {"type": "direct"})
    await site.ask("PUT", Q + "q")
    answer = await site.ask("POST", B + "x/q/q", {"routing_key": "a/b", "arguments": {"n": 1}})
    assert answer.status_code == 201
    [row] = await site.json(B + "x/q/q")
    assert (row["routing_key"], row["arguments"]) == ("a/b", {"n": 1})
    assert answer.headers["location"] == f"q/{row['properties_key']}"
    place = B + f"x/q/{answer.headers['location']}"
    assert await site.json(place) == row
    assert await status(site, "POST", B + "x/e/y", {}) == 201
    assert (await site.json(B + "x/e/y"))[0]["properties_key"] == "~"
    assert len(await site.json(X + "x/bindings/source")) == 2
    assert len(await site.json(X + "y/bindings/destination")) == 1
    assert len(await site.json(Q + "q/bindings")) == 2
    assert await status(site, "DELETE", X + "x?if-unused=true") == 400
    assert await status(site, "DELETE", place) == 204
    assert await status(site, "DELETE", place) == 404
    assert await status(site, "GET", place) == 404
    assert await status(site, "DELETE", B + "x/e/y/~") == 204
    assert await status(site, "DELETE", X + "x?if-unused=true") == 204


@pytest.mark.parametrize("path", ["x/q/none", "none/q/q", "x/z/q", "x/e/q"])
async def test_bindings_between_nothing(site, path):
    await site.ask("PUT", X + "x", {"type": "direct"})
    await site.ask("PUT", Q + "q")
    assert await status(site, "GET", B + path) == 404
    assert await status(site, "POST", B + path, {}) == 404


async def test_http_asks_for_the_permissions_that_a_client_needs(site):
    site.add_user("u", "management")
    site.stage.access.put_permission(PermissionDefinition("/", "u", "^mine", "^mine", "^mine"))
    await site.ask("PUT", Q + "q")
    await site.ask("PUT", X + "x", {"type": "topic"})
    await site.ask("POST", B + "x/q/q", {"routing_key": "k"})
    assert await status(site, "PUT", Q + "mine", {"durable": True}, "u") == 201
    assert await status(site, "PUT", X + "mine", {"type": "topic"}, "u") == 201
    assert await status(site, "POST", B + "mine/q/mine", {}, "u") == 201
    for method, path in [
        ("PUT", Q + "other"),
        ("DELETE", Q + "q"),
        ("DELETE", Q + "q/contents"),
        ("PUT", X + "other"),
        ("DELETE", X + "x"),
        ("POST", B + "x/q/mine"),
        ("POST", B + "mine/q/q"),
        ("DELETE", B + "x/q/q/k"),
    ]:
        code, why = await reason(site, method, path, {} if method != "DELETE" else None, "u")
        assert (code, "access to" in why) == (401, True), (method, path)
    arguments = {"x-dead-letter-exchange": "x"}
    assert await status(site, "PUT", Q + "mine.too", {"arguments": arguments}, "u") == 401
    arguments = {"alternate-exchange": "x"}
    assert await status(site, "PUT", X + "mine.too", {"arguments": arguments}, "u") == 401


async def test_what_is_a_stranger_changes_nothing(site):
    site.add_user("u", "management")  # may enter no virtual host
    for method, path in [("PUT", Q + "q"), ("PUT", X + "x"), ("POST", B + "x/q/q")]:
        assert await status(site, method, path, {}, "u") == 401
        assert await status(site, method, path, {}, None) == 401


async def test_connections_are_shown_and_closed(site):
    site.add_user("u", "management")
    site.permit("u", "/")
    client = Client(site.stage).open()
    [row] = await site.json("/api/connections")
    path = "/api/connections/" + row["name"].replace(" ", "%20")
    assert (await site.json(path))["user"] == "guest"
    assert len(await site.json("/api/vhosts/%2F/connections")) == 1
    assert len(await site.json("/api/connections/username/guest")) == 1
    assert await site.json("/api/connections/username/u") == []
    assert await status(site, "GET", path, user="u") == 404  # it is not his
    assert await status(site, "DELETE", path, user="u") == 404
    assert await status(site, "DELETE", "/api/connections/username/guest", user="u") == 204
    assert site.broker.connections
    assert await status(site, "DELETE", path, headers={"x-reason": "out of order"}) == 204
    [(_, close)] = client.received()
    assert isinstance(close, commands.Connection.Close)
    assert close.reply_text == "CONNECTION_FORCED - out of order"


async def test_monitors_see_all_connections_and_close_their_own(site):
    site.add_user("m", "monitoring")
    client = Client(site.stage).open()
    [row] = await site.json("/api/connections", user="m")
    path = "/api/connections/" + row["name"].replace(" ", "%20")
    assert await status(site, "GET", path, user="m") == 200
    assert await status(site, "DELETE", path, user="m") == 401
    assert await status(site, "DELETE", "/api/connections/username/guest", user="m") == 204
    assert client.received() == []


async def test_all_connections_of_a_user_are_closed(site):
    client = Client(site.stage).open()
    assert await status(site, "DELETE", "/api/connections/username/guest") == 204
    assert client.names() == ["Connection.Close"]


async def test_import_reports_what_has_no_effect_where_it_is_asked_to():
    site = Site()
    upstream = {"vhost": "/", "component": "federation-upstream", "name": "u", "value": {}}
    document = {"parameters": [upstream], "queues": [{"vhost": "/", "name": "q"}]}
    rehearsed = await site.ask("POST", "/api/definitions?dry_run=true", document)
    assert rehearsed.status_code == 200
    assert rehearsed.json()["imported"] == {"parameters": 1, "queues": 1}
    (warning,) = rehearsed.json()["warnings"]
    assert warning.startswith("parameter of 'federation-upstream' has no effect")
    assert not site.broker.vhosts["/"].queues
    code, why = await reason(site, "POST", "/api/definitions?strict=true", document)
    assert (code, "federation" in why) == (400, True)
    reported = await site.ask("POST", "/api/definitions?report=true", document)
    assert reported.json() == rehearsed.json()
    assert await status(site, "POST", "/api/definitions", document) == 204
    assert "q" in site.broker.vhosts["/"].queues


async def test_import_reports_what_exists_otherwise():
    site = Site()
    queue = {"vhost": "/", "name": "q"}
    assert await status(site, "POST", "/api/definitions", {"queues": [queue]}) == 204
    document = {"queues": [{**queue, "arguments": {"x-max-length": 1}}]}
    for query in ("dry_run=true", "report=true"):
        told = (await site.ask("POST", f"/api/definitions?{query}", document)).json()
        assert told["imported"] == {}
        assert told["kept"] == [
            "queue 'q' in vhost '/' stays as it is: x-max-length is not set, the document says 1"
        ]
    code, why = await reason(site, "POST", "/api/definitions?strict=true", document)
    assert (code, "x-max-length" in why) == (400, True)
