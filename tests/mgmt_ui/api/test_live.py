"""Changing queues by HTTP."""

import pytest

from leveret.ports.definitions import PermissionDefinition, PolicyDefinition
from tests.features.browse.test_commands import Desk

URL = "/api/leveret/queues/%2F/q"


@pytest.fixture
def desk():
    return Desk()


async def shown(desk, name="q"):
    return await desk.json(f"/api/queues/%2F/{name}")


async def test_a_queue_is_paused_and_goes_on(desk):
    desk.publish(b"1")
    assert await desk.answer("PUT", f"{URL}/pause") is None
    row = await shown(desk)
    assert (row["state"], row["paused"]) == ("paused", "deliveries")
    assert desk.bodies("q") == []
    assert await desk.answer("PUT", f"{URL}/pause", {"publishing": True}) is None
    assert (await shown(desk))["paused"] == "all"
    assert await desk.answer("DELETE", f"{URL}/pause") is None
    row = await shown(desk)
    assert (row["state"], row.get("paused")) == ("running", None)
    assert desk.bodies("q") == [b"1"]


@pytest.mark.covers("C-213")
async def test_arguments_and_the_name_change(desk):
    changes = {"arguments": {"x-max-length": 5}, "name": "new"}
    assert await desk.answer("PATCH", URL, changes) is None
    row = await shown(desk, "new")
    assert row["arguments"] == {"x-max-length": 5}
    assert row["aliases"] == ["q"]
    assert (await desk.reason("GET", "/api/queues/%2F/q"))[0] == 404
    url = "/api/leveret/queues/%2F/new"
    assert (await desk.reason("DELETE", f"{url}/aliases/other"))[0] == 404
    assert await desk.answer("DELETE", f"{url}/aliases/q") is None
    assert "aliases" not in await shown(desk, "new")


@pytest.mark.covers("C-213")
@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "/api/queues/%2F/q"),
        ("GET", "/api/queues/%2F/q/bindings"),
        ("DELETE", "/api/queues/%2F/q"),
        ("DELETE", "/api/queues/%2F/q/contents"),
        ("GET", f"{URL}/messages"),
        ("GET", f"{URL}/messages/0"),
        ("GET", f"{URL}/messages/0/body"),
        ("PUT", f"{URL}/pause"),
        ("GET", "/api/leveret/retries/%2F/q"),
        ("GET", "/api/leveret/dead-letters/%2F/q"),
        ("GET", "/api/leveret/schedules/%2F?queue=q"),
    ],
)
async def test_who_asks_by_a_name_of_the_past_is_told_the_new_one(desk, method, path):
    await desk.answer("PATCH", URL, {"name": "new"})
    status, reason = await desk.reason(method, path)
    assert (status, reason) == (404, "no queue 'q' in vhost '/': it is now called 'new'")
    assert "new" in desk.stage.broker.vhosts["/"].queues


@pytest.mark.parametrize(
    ("body", "status"),
    [
        ({}, 400),
        ({"arguments": 5}, 400),
        ({"name": 5}, 400),
        ({"type": "quorum"}, 400),
        ({"arguments": {"x-max-length": -1}}, 400),
        ({"arguments": {"x-queue-type": "stream"}}, 400),
        ({"arguments": {"k": "\ud800"}}, 400),
        ({"name": "q"}, 400),
        ({"name": "amq.mine"}, 403),
    ],
)
async def test_changes_that_cannot_be_are_refused(desk, body, status):
    assert (await desk.reason("PATCH", URL, body))[0] == status
    assert (await shown(desk))["arguments"] == {}


async def test_what_is_missing_cannot_change(desk):
    url = "/api/leveret/queues/%2F/missing"
    assert (await desk.reason("PATCH", url, {"name": "new"}))[0] == 404
    assert (await desk.reason("PUT", f"{url}/pause"))[0] == 404
    assert (await desk.reason("PUT", f"{URL}/pause", {"publishing": 1}))[0] == 400


async def test_it_takes_what_declaring_the_queue_would_take(desk):
    desk.add_user("some", "management")
    desk.stage.access.put_permission(PermissionDefinition("/", "some", "^q$", "^q$", "^q$"))
    for method, path, body in (
        ("PATCH", URL, {"name": "new"}),
        ("PATCH", URL, {"arguments": {"x-dead-letter-exchange": "amq.direct"}}),
        ("PUT", "/api/leveret/queues/%2F/other/pause", None),
    ):
        assert (await desk.reason(method, path, body, "some"))[0] == 401
    response = await desk.ask("PATCH", URL, {"arguments": {"x-expires": 60_000}}, user="some")
    assert response.status_code == 204


@pytest.mark.parametrize(
    ("configure", "write", "read", "status"),
    [
        (".*", ".*", "^mine-", 401),
        (".*", ".*", "^q$", 401),
        (".*", "^mine-", ".*", 401),
        (".*", "^q$", ".*", 401),
        ("^q$", ".*", ".*", 401),
        ("^(q|mine-x)$", "^(q|mine-x)$", "^(q|mine-x)$", 204),
    ],
)
async def test_another_name_takes_all_permissions_for_both(desk, configure, write, read, status):
    desk.add_user("some", "management")
    desk.stage.access.put_permission(PermissionDefinition("/", "some", configure, write, read))
    response = await desk.ask("PATCH", URL, {"name": "mine-x"}, user="some")
    assert response.status_code == status


@pytest.mark.parametrize("by_policy", [False, True])
@pytest.mark.parametrize(
    "arguments",
    [
        {"x-dead-letter-routing-key": "mine-x", "x-message-ttl": 0},
        {"x-dead-letter-topic": True},
        {"x-dead-letter-exchange": None},
    ],
)
async def test_where_dead_letters_go_is_for_who_may_send_them_there(desk, arguments, by_policy):
    definition = {"dead-letter-exchange": "amq.direct"}
    if by_policy:
        policy = PolicyDefinition("/", "p", "^q$", definition, 0, "all", operator=False)
        desk.administration.set_policy(policy)
    else:
        set_before = {"arguments": {"x-dead-letter-exchange": "amq.direct"}}
        assert await desk.answer("PATCH", URL, set_before) is None
    none, both = "^$", "^(q|amq.direct)$"
    writes_nowhere = not by_policy and "x-dead-letter-exchange" in arguments
    for name, write, read, may in (
        ("writer", both, none, False),
        ("reader", none, both, writes_nowhere),
        ("some", both, both, True),
    ):
        desk.add_user(name, "management")
        desk.stage.access.put_permission(PermissionDefinition("/", name, "^q$", write, read))
        response = await desk.ask("PATCH", URL, {"arguments": arguments}, user=name)
        assert (response.status_code != 401) is may, name
