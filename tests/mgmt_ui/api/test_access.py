"""Users, permissions, limits, policies, parameters and virtual hosts by HTTP."""

import pytest

from leveret.core.access.passwords import verify_password
from tests.support.site import Site


@pytest.fixture
def site():
    return Site()


async def status(site, method, path, body=None, user="guest"):
    return (await site.ask(method, path, body, user)).status_code


async def reason(site, method, path, body=None, user="guest"):
    answer = await site.ask(method, path, body, user)
    return answer.status_code, answer.json()["reason"]


# -- users


async def test_a_user_comes_changes_and_goes(site):
    body = {"password": "secret", "tags": "monitoring, own"}
    assert await status(site, "PUT", "/api/users/u", body) == 201
    row = await site.json("/api/users/u")
    assert (row["name"], row["tags"], row["limits"]) == ("u", ["monitoring", "own"], {})
    kept = site.administration.user("u").password_hash
    assert verify_password(kept, "secret")
    again = {"password_hash": row["password_hash"], "tags": [], **_algorithm(row)}
    assert await status(site, "PUT", "/api/users/u", again) == 204
    assert site.administration.user("u").password_hash == kept
    assert await status(site, "PUT", "/api/users/u", {"tags": ""}) == 204
    assert site.administration.user("u").password_hash == ""
    assert await status(site, "DELETE", "/api/users/u") == 204
    assert await status(site, "DELETE", "/api/users/u") == 404


def _algorithm(row):
    return {"hashing_algorithm": row["hashing_algorithm"]}


@pytest.mark.parametrize(
    ("body", "why"),
    [
        ({"password": "p"}, "tags_not_present"),
        (
            {"password": "p", "password_hash": "", "tags": ""},
            "both_password_and_password_hash_are_provided",
        ),
        ({"password_hash": "%", "tags": ""}, "password hash is not base64"),
        ({"password": 5, "tags": ""}, "password is text"),
        ({"tags": 5}, "tags is a list, or text with commas"),
    ],
)
async def test_what_is_no_user(site, body, why):
    assert await reason(site, "PUT", "/api/users/u", body) == (400, why)
    assert site.stage.access.user("u") is None


async def test_several_users_are_deleted_or_none(site):
    site.add_user("a")
    site.add_user("b")
    bulk = "/api/users/bulk-delete"
    assert await reason(site, "POST", bulk, {"users": ["a", "c"]}) == (400, "no_such_user c")
    assert await reason(site, "POST", bulk, {}) == (400, "[{key_missing,users}]")
    assert await reason(site, "POST", bulk, {"users": "a"}) == (400, "users is a list of names")
    assert await status(site, "POST", bulk, {"users": ["a", "b", "a"]}) == 204
    assert [user["name"] for user in await site.json("/api/users")] == ["guest"]


async def test_users_without_permissions(site):
    site.add_user("new")
    found = await site.json("/api/users/without-permissions")
    assert [user["name"] for user in found] == ["new"]
    assert await site.json("/api/users/new/permissions") == []
    assert await status(site, "GET", "/api/users/none/permissions") == 404


# -- permissions


ALL = {"configure": ".*", "write": ".*", "read": ".*"}


async def test_permissions(site):
    site.add_user("u")
    path = "/api/permissions/%2F/u"
    assert await status(site, "GET", path) == 404
    assert await status(site, "PUT", path, ALL) == 201
    assert await status(site, "PUT", path, {**ALL, "read": "^a"}) == 204
    row = {"user": "u", "vhost": "/", **ALL, "read": "^a"}
    assert await site.json(path) == row
    assert await site.json("/api/users/u/permissions") == [row]
    assert row in await site.json("/api/vhosts/%2F/permissions")
    assert await status(site, "DELETE", path) == 204
    assert await status(site, "DELETE", path) == 404


@pytest.mark.parametrize(
    ("path", "body", "why"),
    [
        ("%2F/none", ALL, "vhost_or_user_not_found"),
        ("none/guest", ALL, "vhost_or_user_not_found"),
        ("%2F/guest", {"read": ""}, "[{key_missing,configure},{key_missing,write}]"),
        ("%2F/guest", {**ALL, "read": 5}, "permission.set: read is text"),
    ],
)
async def test_what_is_no_permission(site, path, body, why):
    assert await reason(site, "PUT", f"/api/permissions/{path}", body) == (400, why)


async def test_a_pattern_that_is_none(site):
    body = {**ALL, "read": "*"}
    assert await status(site, "PUT", "/api/permissions/%2F/guest", body) == 400


async def test_topic_permissions(site):
    path, body = "/api/topic-permissions/%2F/guest", {"exchange": "x", "write": "a", "read": "b"}
    assert await status(site, "GET", path) == 404
    assert await status(site, "PUT", path, body) == 201
    assert await status(site, "PUT", path, body) == 204
    assert await status(site, "PUT", path, {**body, "exchange": "y"}) == 201
    row = {"user": "guest", "vhost": "/", **body}
    assert (await site.json(path))[0] == row
    assert row in await site.json("/api/users/guest/topic-permissions")
    assert row in await site.json("/api/vhosts/%2F/topic-permissions")
    assert row in await site.json("/api/topic-permissions")
    assert await status(site, "DELETE", f"{path}/x") == 204
    assert await status(site, "DELETE", f"{path}/x") == 404
    assert await status(site, "DELETE", path) == 204
    assert await status(site, "DELETE", path) == 404


# -- limits


@pytest.mark.parametrize(
    ("path", "limit", "key", "of"),
    [
        ("/api/user-limits/guest", "max-channels", "user", "guest"),
        ("/api/vhost-limits/%2F", "max-queues", "vhost", "/"),
    ],
)
async def test_limits(site, path, limit, key, of):
    collection = path.rpartition("/")[0]
    assert await site.json(path) == await site.json(collection) == []
    assert await status(site, "PUT", f"{path}/{limit}", {"value": 5}) == 204
    assert await site.json(path) == [{key: of, "value": {limit: 5}}]
    assert await site.json(collection) == await site.json(path)
    for wrong in ({}, {"value": "many"}, {"value": True}):
        assert await status(site, "PUT", f"{path}/{limit}", wrong) == 400
    assert await status(site, "PUT", f"{path}/max-nonsense", {"value": 5}) == 400
    assert await status(site, "DELETE", f"{path}/{limit}") == 204
    assert await status(site, "DELETE", f"{path}/{limit}") == 204
    assert await site.json(path) == []
    assert await status(site, "GET", f"{collection}/none") == 404
    assert await status(site, "DELETE", f"{collection}/none/{limit}") == 404


# -- policies and parameters


@pytest.mark.parametrize("kind", ["policies", "operator-policies"])
async def test_policies(site, kind):
    path = f"/api/{kind}/%2F/p"
    body = {"pattern": "^a", "definition": {"max-length": 1}}
    assert await status(site, "PUT", path, body) == 201
    assert await status(site, "PUT", path, {**body, "priority": 2, "apply-to": "queues"}) == 204
    row = {"vhost": "/", "name": "p", **body, "priority": 2, "apply-to": "queues"}
    assert await site.json(path) == row
    assert await site.json(f"/api/{kind}") == await site.json(f"/api/{kind}/%2F") == [row]
    assert await status(site, "DELETE", path) == 204
    assert await status(site, "DELETE", path) == 404


@pytest.mark.parametrize(
    "body",
    [
        {"pattern": "^a"},
        {"pattern": "*", "definition": {"max-length": 1}},
        {"pattern": "a", "definition": {}},
        {"pattern": "a", "definition": []},
        {"pattern": "a", "definition": {"nonsense": 1}},
        {"pattern": "a", "definition": {"max-length": 1}, "priority": "x"},
        {"pattern": "a", "definition": {"max-length": 1}, "apply-to": "x"},
        {"pattern": "a", "definition": {"retention-waits-for": ["g"]}},
    ],
)
async def test_what_is_no_policy(site, body):
    assert await status(site, "PUT", "/api/policies/%2F/p", body) == 400
    assert await site.json("/api/policies") == []


async def test_policymakers_make_policies_where_they_may_enter_and_no_operator_policies(site):
    site.add_user("maker", "policymaker")
    body = {"pattern": "^a", "definition": {"max-length": 1}}
    assert await status(site, "PUT", "/api/policies/%2F/p", body, "maker") == 401
    site.permit("maker", "/")
    assert await status(site, "PUT", "/api/policies/%2F/p", body, "maker") == 201
    assert await status(site, "PUT", "/api/operator-policies/%2F/p", body, "maker") == 401


async def test_parameters(site):
    path = "/api/parameters/shovel/%2F/s"
    assert await status(site, "PUT", path, {"value": {"a": 1}}) == 201
    assert await status(site, "PUT", path, {"value": {"a": 2}}) == 204
    row = {"vhost": "/", "component": "shovel", "name": "s", "value": {"a": 2}}
    assert await site.json(path) == row
    for some in ("", "/shovel", "/shovel/%2F"):
        assert await site.json(f"/api/parameters{some}") == [row]
    assert await site.json("/api/parameters/other") == []
    assert await status(site, "PUT", path, {}) == 400
    assert await status(site, "DELETE", path) == 204
    assert await status(site, "DELETE", path) == 404


async def test_parameters_that_are_set_elsewhere(site):
    await site.ask("PUT", "/api/vhost-limits/%2F/max-queues", {"value": 5})
    limits = "/api/parameters/vhost-limits/%2F/limits"
    assert (await site.json(limits))["value"] == {"max-queues": 5}
    why = "vhost-limits: this is set by /api/vhost-limits"
    assert await reason(site, "PUT", limits, {"value": {}}) == (400, why)
    assert await reason(site, "DELETE", limits) == (400, why)


async def test_global_parameters(site):
    path = "/api/global-parameters/g"
    assert await status(site, "PUT", path, {"value": [1]}) == 201
    assert await status(site, "PUT", path, {"value": [2]}) == 204
    assert await site.json(path) == {"name": "g", "value": [2]}
    assert await site.json("/api/global-parameters") == [{"name": "g", "value": [2]}]
    assert await status(site, "DELETE", path) == 204
    assert await status(site, "DELETE", path) == 404


# -- virtual hosts


async def test_a_vhost_comes_changes_and_goes(site):
    path = "/api/vhosts/v"
    body = {"description": "d", "tags": "a,b", "default_queue_type": "quorum"}
    assert await status(site, "PUT", path, body) == 201
    row = await site.json(path)
    assert (row["description"], row["tags"], row["default_queue_type"]) == (
        "d",
        ["a", "b"],
        "quorum",
    )
    assert (await site.json("/api/permissions/v/guest"))["write"] == ".*"
    assert await status(site, "PUT", path, {"metadata": {"description": "e"}}) == 204
    row = await site.json(path)
    assert (row["description"], row["tags"], row["default_queue_type"]) == (
        "e",
        ["a", "b"],
        "quorum",
    )
    assert await status(site, "PUT", path) == 204
    assert await status(site, "DELETE", path) == 204
    assert await status(site, "DELETE", path) == 404


async def test_a_protected_vhost_stays(site):
    await site.ask("PUT", "/api/vhosts/v")
    protection = "/api/vhosts/v/deletion/protection"
    assert await status(site, "POST", protection) == 204
    assert await status(site, "DELETE", "/api/vhosts/v") == 412
    assert await status(site, "DELETE", protection) == 204
    assert await status(site, "PUT", "/api/vhosts/v", {"protected_from_deletion": True}) == 204
    assert await status(site, "DELETE", "/api/vhosts/v") == 412


async def test_a_vhost_is_started_where_it_runs(site):
    assert await status(site, "POST", "/api/vhosts/%2F/start/leveret@test") == 204
    assert await status(site, "POST", "/api/vhosts/%2F/start/other") == 400
    assert await status(site, "POST", "/api/vhosts/none/start/leveret@test") == 400


async def test_what_could_not_be_said_again(site):
    for body in (b'{"value": NaN}', b'{"value": 1e999}', rb'{"value": {"a": "\ud800"}}'):
        answer = await site.get("/api/global-parameters/g", method="PUT", content=body)
        assert (answer.status_code, answer.json()["reason"]) == (400, "not_json")


@pytest.mark.parametrize("depth", [64, 900])
async def test_what_is_too_deep_to_walk_through(site, depth):
    body = b'{"arguments": {"a": %s}}' % (b"[" * depth + b"]" * depth)
    answer = await site.get("/api/queues/%2F/deep", method="PUT", content=body)
    assert (answer.status_code, answer.json()["reason"]) == (400, "nested deeper than 64")
