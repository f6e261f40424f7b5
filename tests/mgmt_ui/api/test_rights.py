"""Every route is refused without credentials, with wrong ones, and with too low ones.

A new route fails here until it stands in the table.
"""

import re

import pytest
from fastapi.routing import APIRoute

from tests.support.client import Client
from tests.support.site import Site, behind

# Who is let in: anybody; an application, by its permissions; whoever has one of these tags.
OPEN, CLIENT = "open", "client"
MANAGER, POLICYMAKER, MONITOR, ADMINISTRATOR = (
    "management",
    "policymaker",
    "monitoring",
    "administrator",
)
# Tags that are not enough for each.
TOO_LOW = {
    CLIENT: (),
    MANAGER: ("",),
    POLICYMAKER: ("", "management", "monitoring"),
    MONITOR: ("", "management", "policymaker"),
    ADMINISTRATOR: ("", "management", "policymaker", "monitoring"),
}

# By the beginnings of paths, the longest that fits; with the method before it where that matters.
TABLE = {
    "/api/auth": OPEN,
    "/api/auth/attempts": MONITOR,
    "DELETE /api/auth/attempts": ADMINISTRATOR,
    "/api/auth/hash_password": ADMINISTRATOR,
    "/api/login": OPEN,
    "/api/health/checks/is-in-service": OPEN,
    "/api/health/checks/ready-to-serve-clients": OPEN,
    "/api/health": MANAGER,
    "/api/openapi.json": OPEN,
    "/api/docs": OPEN,
    "/api": None,  # every resource says for itself
    "/api/aliveness-test": MANAGER,
    "/api/healthchecks": MANAGER,
    "/api/overview": MANAGER,
    "/api/cluster-name": MANAGER,
    "PUT /api/cluster-name": ADMINISTRATOR,
    "/api/nodes": MONITOR,
    "/api/version": MANAGER,
    "/api/extensions": MANAGER,
    "/api/config": ADMINISTRATOR,
    "/api/rebalance": ADMINISTRATOR,
    "/api/reset": ADMINISTRATOR,
    "/api/definitions": ADMINISTRATOR,
    "/api/all-configuration": ADMINISTRATOR,
    "/api/feature-flags": ADMINISTRATOR,
    "/api/deprecated-features": MANAGER,
    "/api/channels": MANAGER,
    "/api/consumers": MANAGER,
    "/api/connections": MANAGER,
    "/api/exchanges": MANAGER,
    "/api/queues": MANAGER,
    "POST /api/queues/quorum": ADMINISTRATOR,
    "DELETE /api/queues/quorum": ADMINISTRATOR,
    "/api/bindings": MANAGER,
    "/api/vhosts": MANAGER,
    "PUT /api/vhosts": ADMINISTRATOR,
    "POST /api/vhosts": ADMINISTRATOR,
    "DELETE /api/vhosts": ADMINISTRATOR,
    "/api/vhosts/{name}/permissions": ADMINISTRATOR,
    "/api/vhosts/{name}/topic-permissions": ADMINISTRATOR,
    "/api/whoami": MANAGER,
    "/api/users": ADMINISTRATOR,
    "/api/permissions": ADMINISTRATOR,
    "/api/topic-permissions": ADMINISTRATOR,
    "/api/user-limits": ADMINISTRATOR,
    "/api/vhost-limits": MANAGER,
    "PUT /api/vhost-limits": ADMINISTRATOR,
    "DELETE /api/vhost-limits": ADMINISTRATOR,
    "/api/policies": MANAGER,
    "PUT /api/policies": POLICYMAKER,
    "DELETE /api/policies": POLICYMAKER,
    "/api/operator-policies": MANAGER,
    "PUT /api/operator-policies": ADMINISTRATOR,
    "DELETE /api/operator-policies": ADMINISTRATOR,
    "/api/parameters": POLICYMAKER,
    "/api/global-parameters": POLICYMAKER,
    "/api/leveret": MANAGER,
    **{
        f"POST /api/leveret/queues/{{vhost}}/{{name}}/{verb}": CLIENT
        for verb in ("receive", "ack", "nack", "extend")
    },
    "PUT /api/leveret/consumer-groups/{vhost}/{queue}/{name}/offsets": CLIENT,
    "/api/leveret/topics/{vhost}/{name}/offsets": CLIENT,
    "/api/leveret/topics/{vhost}/{name}/partitions/{number}": CLIENT,
    "/api/leveret/batches": CLIENT,
    "/api/leveret/leases": CLIENT,
    "PUT /api/leveret/alert-rules": POLICYMAKER,
    "DELETE /api/leveret/alert-rules": POLICYMAKER,
    "/api/leveret/audit": ADMINISTRATOR,
    "/api/leveret/messages": ADMINISTRATOR,
    "/api/leveret/encryption": ADMINISTRATOR,
    "/metrics": MONITOR,
}
VALUES = {
    "vhost": "secret",
    "user": "guest",
    "component": "c",
    "limit": "max-queues",
    "node": "leveret@test",
    "source": "amq.direct",
    "destination": "q",
    "dtype": "q",
    "within": "1",
    "unit": "weeks",
    "port": "5672",
    "protocol": "amqp",
    "offset": "0",
    "number": "0",
}
# A name means what the resource is.
NAMES = {
    "/api/vhosts": "secret",
    "/api/users": "guest",
    "/api/nodes": "leveret@test",
    "/api/reset": "leveret@test",
    "/api/auth/attempts": "leveret@test",
    "/api/queues": "q",
    "/api/leveret/queues": "q",
    "/api/leveret/topics": "q",
    "/api/leveret/leases": "q",
}
# Bodies without which a request is refused before it is asked who may.
HANDLES = {"receipt_handles": ["1.1"]}
BODIES = {
    "PATCH /api/leveret/queues/{vhost}/{name}": {"arguments": {}},
    "PUT /api/leveret/consumer-groups/{vhost}/{queue}/{name}/offsets": {"offsets": {}},
    "POST /api/leveret/queues/{vhost}/{name}/ack": HANDLES,
    "POST /api/leveret/queues/{vhost}/{name}/nack": HANDLES,
    "POST /api/leveret/queues/{vhost}/{name}/extend": {**HANDLES, "visibility_timeout_ms": 1},
}
VHOST_BY_NAME = "/api/vhosts/{name}"


def routes(application):
    """(method, path) of all routes of the API."""
    api = behind(application, "_api")
    found = set()
    for route in flat(api.routes):
        found |= {(method, route.path) for method in route.methods - {"HEAD", "OPTIONS"}}
    return sorted(found)


def flat(routes):
    """Routes, those of routers that FastAPI includes as they are among them."""
    for route in routes:
        included = getattr(route, "original_router", None)
        if included is not None:
            yield from flat(included.routes)
        else:
            assert isinstance(route, APIRoute), f"{route} is not looked at"
            yield route


ROUTES = routes(Site().app)
assert len(ROUTES) > 100, "the routes are not found"


def right(method, path):
    """Return the right that the table names for a route."""
    best = max(
        (
            key
            for key in TABLE
            if key.rpartition(" ")[0] in {"", method}
            and f"{path}/".startswith(f"{key.rpartition(' ')[2]}/")
        ),
        key=lambda key: (len(key.rpartition(" ")[2]), len(key)),
        default=None,
    )
    assert best is not None, f"{method} {path} has no place in the table"
    assert TABLE[best] is not None, f"{method} {path} has no place in the table"
    return TABLE[best]


def filled(path):
    """A path with values, of things that are there."""
    name = next((NAMES[key] for key in sorted(NAMES, reverse=True) if path.startswith(key)), "x")
    return re.sub(r"\{(\w+)\}", lambda found: VALUES.get(found[1], name).replace("/", "%2F"), path)


@pytest.fixture
def site():
    site = Site()
    site.administration.add_vhost("secret")
    site.permit("guest", "secret")
    site.add_user("nobody")
    for tag in (MANAGER, POLICYMAKER, MONITOR):
        site.add_user(tag, tag)
    client = Client(site.stage).open()
    client.declare("q", durable=True)
    client.publish("q", b"1")
    return site


def state(site):
    """Return what a refused request must not change."""
    store = site.stage.metadata
    vhosts = site.broker.vhosts
    return (
        site.administration.vhosts(),
        site.stage.access.users(),
        site.stage.access.permissions(),
        site.administration.policies.select(operator=False),
        site.administration.parameters.select(),
        site.administration.parameters.all_global(),
        {(name, key) for name, vhost in vhosts.items() for key in vhost.queues},
        {(name, key) for name, vhost in vhosts.items() for key in vhost.exchanges},
        len(site.broker.connections),
        site.stage.queue("q").message_count,
        store.pending,
    )


@pytest.mark.parametrize(("method", "path"), ROUTES)
async def test_nobody_gets_in(site, method, path):
    needed, before = right(method, path), state(site)
    asked = filled(path)
    if needed == OPEN:
        return
    answers = [await site.ask(method, asked, None, None)]
    wrong = {"authorization": "Basic Z3Vlc3Q6d3Jvbmc="}  # guest:wrong
    answers.append(await site.get(asked, None, method=method, headers=wrong))
    for answer in answers:
        assert (answer.status_code, answer.json()["error"]) == (401, "not_authorized")
    for tag in TOO_LOW[needed]:
        answer = await site.ask(method, asked, {}, tag or "nobody")
        assert (answer.status_code, answer.json()["error"]) == (401, "not_authorised"), tag
    assert state(site) == before


@pytest.mark.parametrize(
    ("method", "path"),
    [(method, path) for method, path in ROUTES if "{vhost}" in path or VHOST_BY_NAME in path],
)
async def test_a_vhost_is_closed_to_whom_it_is_not_opened(site, method, path):
    before = state(site)
    body = BODIES.get(f"{method} {path}", {})
    for user in (MANAGER, POLICYMAKER):
        answer = await site.ask(method, filled(path), body, user)
        if "/health/checks/" in path:  # tells nothing of it
            assert answer.status_code == 200
        else:
            told = answer.status_code, answer.json()["error"]
            assert told == (401, "not_authorised"), (user, answer.text)
    assert state(site) == before


@pytest.mark.parametrize(("method", "path"), [each for each in ROUTES if "/leveret/" in each[1]])
async def test_a_missing_permission_is_refused_as_by_rabbitmq(site, method, path):
    """Users whom the virtual host is open to, and nothing in it."""
    before = state(site)
    for user in ("nobody", MANAGER, POLICYMAKER):
        site.permit(user, "secret", "^$", "^$", "^$")
        answer = await site.ask(method, filled(path), BODIES.get(f"{method} {path}", {}), user)
        if answer.status_code in {401, 403}:
            told = answer.status_code, answer.json()["error"]
            assert told == (401, "not_authorised"), (user, answer.text)
            reason = answer.json()["reason"]  # which a client can pass on
            assert re.search(r"refused for user|^Not \w+ user$|^User not authorised", reason), (
                reason
            )
    assert state(site)[3:] == before[3:]


async def test_a_session_without_its_token_changes_nothing(site):
    form = {"content": b"username=guest&password=guest"}
    answer = await site.get("/api/login", None, method="POST", **form)
    assert answer.json() == "ok"
    cookie = answer.headers["set-cookie"]
    assert "HttpOnly" in cookie
    assert "SameSite=strict" in cookie
    headers = {"cookie": cookie.partition(";")[0]}
    assert (await site.get("/api/whoami", None, headers=headers)).status_code == 200
    answer = await site.get("/api/vhosts/v", None, method="PUT", headers=headers)
    assert answer.status_code == 403


ELSEWHERE = [
    {"origin": "https://evil.example"},
    {"origin": "http://["},
    {"origin": "null"},
    {"sec-fetch-site": "cross-site"},
]


@pytest.mark.parametrize("headers", ELSEWHERE)
async def test_a_browsers_password_does_not_serve_other_sites(site, headers):
    ask = {"method": "PUT", "headers": headers}
    assert (await site.get("/api/vhosts/evil", **ask)).status_code == 403
    assert "evil" not in site.broker.vhosts
    form = {"content": b"username=guest&password=guest", "headers": headers, "method": "POST"}
    answer = await site.get("/api/login", None, **form)
    assert (answer.status_code, "set-cookie" in answer.headers) == (403, False)
    assert (await site.get("/api/overview", headers=headers)).status_code == 200
    ask["headers"] = {"origin": "http://node", "sec-fetch-site": "same-origin"}
    assert (await site.get("/api/vhosts/ours", **ask)).status_code == 201


async def test_a_session_opened_anew_ends_the_one_before(site):
    form = {"content": b"username=guest&password=guest", "method": "POST"}
    first = await site.get("/api/login", None, headers={"origin": "https://node"}, **form)
    assert "Secure" in first.headers["set-cookie"]  # a proxy has the certificate
    cookie = {"cookie": first.headers["set-cookie"].partition(";")[0]}
    assert (await site.get("/api/whoami", None, headers=cookie)).status_code == 200
    second = await site.get("/api/login", None, headers=cookie, **form)
    assert "Secure" not in second.headers["set-cookie"]
    assert (await site.get("/api/whoami", None, headers=cookie)).status_code == 401


@pytest.mark.parametrize(
    "form", [b"", b"username=guest", b"username=guest&password=x", b"\xff=%ff"]
)
async def test_a_sign_in_that_is_none(site, form):
    answer = await site.get("/api/login", None, method="POST", content=form)
    assert (answer.status_code, answer.json()["error"]) == (401, "not_authorized")
