"""Undeclared fields are refused: a typo must not make a criterion mean everything."""

import re
from typing import Any

import pytest

from leveret.core.admin.commands import COMMANDS
from leveret.mgmt_ui.control import COMMAND_LINE
from leveret.mgmt_ui.operations.dispatcher import perform
from tests.mgmt_ui.api.test_rights import BODIES, ROUTES, filled
from tests.support.client import Client
from tests.support.site import Site

OWN = [route for route in ROUTES if route[1].startswith("/api/leveret/")]
# Bodies that are no JSON have no fields.
STREAMS = ("/api/leveret/batches/{vhost}/{writer}/{number}/parts/{part}",)
CHANGING = [route for route in OWN if route[0] != "GET" and route[1] not in STREAMS]
assert len(OWN) > 40, "the routes are not found"
EXAMPLES = {str: "x", list[str]: [], dict[str, Any]: {}, int: 0, bool: False}


@pytest.fixture
def site():
    site = Site()
    site.administration.add_vhost("secret")
    site.permit("guest", "secret")
    site.permit("guest", "/")
    Client(site.stage).open().declare("q", durable=True)
    return site


@pytest.mark.parametrize(("method", "path"), OWN)
async def test_our_routes_refuse_undeclared_parameters(site, method, path):
    body = None if method == "GET" else BODIES.get(f"{method} {path}", {})
    answer = await site.ask(method, filled(path), body, params={"undeclared": "1"})
    assert answer.status_code == 400, answer.text
    assert "unknown field 'undeclared'" in answer.json()["reason"]


@pytest.mark.parametrize(("method", "path"), CHANGING)
async def test_our_routes_refuse_undeclared_fields(site, method, path):
    of_queues = ("/queues/", "/dead-letters/", "/leases/", "retries")
    vhost = "/" if any(part in path for part in of_queues) else "secret"
    asked = filled(re.sub(r"\{vhost\}", vhost.replace("/", "%2F"), path))
    body = {**BODIES.get(f"{method} {path}", {}), "undeclared": 1}
    answer = await site.ask(method, asked, body)
    assert answer.status_code == 400, answer.text
    assert "unknown field 'undeclared'" in answer.json()["reason"]


@pytest.mark.parametrize("name", sorted(COMMANDS))
async def test_operations_refuse_undeclared_parameters(site, name):
    parameters = {key: EXAMPLES.get(kind) for key, kind in COMMANDS[name].parameters.items()}
    request = {"operation": name, "parameters": {**parameters, "undeclared": 1}}
    answer = await perform(site.context, request, COMMAND_LINE)
    assert not answer["ok"]
    assert f"{name}: unknown field 'undeclared'" in answer["explanation"]


@pytest.mark.parametrize(
    ("method", "path", "body", "meant"),
    [
        ("POST", "schedules/%2F/cancel", {"routing_key": "rep", "excange": "zz"}, "exchange"),
        ("POST", "dead-letters/%2F/q/redrive", {"header": {"shop": 1}}, "headers"),
        ("POST", "dead-letters/%2F/q/delete", {"reason": "x", "ids": ["0"]}, "message_ids"),
        ("GET", "dead-letters/%2F/q?id=0", None, "message_id"),
        ("GET", "schedules/%2F?due_from=2026-01-01", None, "due_from_ms"),
        ("GET", "queues/%2F/q/messages?message-id=x", None, "message_id"),
        ("POST", "queues/%2F/q/messages/delete", {"select": {"stat": "ready"}}, "state"),
        ("PUT", "alert-rules/%2F/a", {"condition": "backlog", "abov": 1}, "above"),
    ],
)
async def test_what_may_be_meant_is_said(site, method, path, body, meant):
    answer = await site.ask(method, f"/api/leveret/{path}", body)
    assert answer.status_code == 400
    assert meant in answer.json()["reason"]


async def test_a_parameter_is_given_once_unless_it_is_a_list(site):
    records = "/api/leveret/topics/%2F/q/partitions/0/records?offset=0&offset=5"
    assert await site.error(records) == (
        400,
        "bad_request",
        "offset is given 2 times: state it once",
    )
    assert (await site.error("/api/leveret/topics?page=1&page=1"))[0] == 400
    several = "/api/leveret/dead-letters/%2F/q?message_id=a&message_id=b"
    assert (await site.get(several)).status_code == 200


async def test_a_column_to_sort_by_is_one_of_the_rows(site):
    stream = {"x-queue-type": "stream"}
    Client(site.stage).open().declare("s", durable=True, arguments=stream)
    assert await site.json("/api/leveret/batches/secret?sort=foo") == []
    error = await site.error("/api/leveret/topics?sort=nam")
    assert error[:2] == (400, "bad_request")
    assert error[2].startswith("sort: unknown column 'nam'; did you mean 'name'?; there are ")
    for column in ("name", "vhost", "type"):
        assert len(await site.json(f"/api/leveret/topics?sort={column}&sort_reverse=true")) == 1
    error = await site.error("/api/leveret/topics?sort_reverse=yes")
    assert error == (400, "bad_request", "sort_reverse is true or false")
    for path in ("queues?sort=foo", "queues?sort_reverse=yes", "queues?sort=name&sort=type"):
        assert len(await site.json(f"/api/{path}")) == 2  # as RabbitMQ


async def test_problems_with_a_body_are_told_in_words(site):
    """RabbitMQ's routes keep RabbitMQ's words."""
    groups = "/api/leveret/consumer-groups/%2F/q/g/reset"
    for path, content, told in (
        (groups, b"{", "the request is not valid JSON"),
        (groups, b"{}", "to is missing"),
        (groups, b'{"to": "next", "dry_run": 7}', "dry_run is true or false"),
        ("/api/users/bulk-delete", b"{", "not_json"),
        ("/api/users/bulk-delete", b"{}", "[{key_missing,users}]"),
    ):
        error = await site.error(path, method="POST", content=content)
        assert error == (400, "bad_request", told)


async def test_routes_of_rabbitmq_ignore_what_they_do_not_know(site):
    asked = {"durable": True, "unknown": 1}
    answer = await site.ask("PUT", "/api/queues/%2F/new", asked, params={"unknown": "1"})
    assert answer.status_code == 201


async def test_what_is_declared_is_described(site):
    described = (await site.get("/api/openapi.json", None)).json()["paths"]
    listed = described["/api/leveret/schedules/{vhost}"]["get"]["parameters"]
    assert {"header", "due_from_ms"} <= {one["name"] for one in listed if one["in"] == "query"}
    redrive = described["/api/leveret/dead-letters/{vhost}/{name}/redrive"]["post"]
    schema = redrive["requestBody"]["content"]["application/json"]["schema"]
    assert {"offsets", "message_ids", "headers"} <= schema["properties"].keys()
