"""Alert rules, alerts and the audit log by HTTP."""

import pytest

from tests.support.client import Client
from tests.support.site import Site

RULES = "/api/leveret/alert-rules"
RULE = {"condition": "backlog", "above": 1, "for_seconds": 0, "secret": "hush"}


@pytest.fixture
async def site(tmp_path):
    async with Site().running(tmp_path) as site:
        site.administration.add_vhost("v")
        yield site


async def status(site, method, path, body=None, user="guest"):
    return (await site.ask(method, path, body, user)).status_code


async def test_rules_come_and_go(site):
    path = f"{RULES}/v/r"
    assert await status(site, "PUT", path, RULE) == 201
    assert await status(site, "PUT", path, {**RULE, "secret": "…", "above": 2}) == 204
    shown = {"vhost": "v", "name": "r", "rule": {**RULE, "secret": "…", "above": 2}}
    assert await site.json(path) == shown
    assert await site.json(RULES) == [shown]
    assert await site.json(f"{RULES}/v") == [shown]
    [kept] = site.administration.parameters.select(component="alert")
    assert kept.value["secret"] == "hush"  # what is shown hidden and sent back stays as it was
    assert await status(site, "DELETE", path) == 204
    assert await status(site, "DELETE", path) == 404
    assert await status(site, "GET", path) == 404
    answer = await site.ask("PUT", path, {"condition": "boredom"})
    assert (answer.status_code, "condition is one of" in answer.json()["reason"]) == (400, True)
    assert await status(site, "PUT", f"{RULES}/none/r", RULE) == 404


async def test_parameters_hide_the_secrets_of_rules(site):
    assert await status(site, "PUT", f"{RULES}/v/r", RULE) == 201
    [row] = await site.json("/api/parameters/alert")
    assert row["value"] == {**RULE, "secret": "…"}
    assert (await site.json("/api/parameters/alert/v/r"))["value"]["secret"] == "…"
    assert await status(site, "PUT", "/api/parameters/alert/v/r", {"value": RULE}) == 400


async def test_of_a_webhook_only_the_host_is_shown(site):
    path, webhook = f"{RULES}/v/r", "https://user:pw@hooks.example/services/hush?token=hush"
    await site.ask("PUT", path, {**RULE, "webhook": webhook})
    shown = (await site.json(path))["rule"]
    assert shown["webhook"] == "https://hooks.example/…"
    assert await status(site, "PUT", path, {**shown, "above": 3}) == 204
    [kept] = site.administration.parameters.select(component="alert")
    assert (kept.value["webhook"], kept.value["secret"]) == (webhook, "hush")
    await site.ask("PUT", path, {**RULE, "webhook": "http://hooks.example"})
    assert (await site.json(path))["rule"]["webhook"] == "http://hooks.example"


async def test_answers_are_taken_for_what_they_say_they_are(site):
    for path in ("/api/overview", "/api/queues", "/api/none"):
        answer = await site.get(path)
        assert answer.headers["x-content-type-options"] == "nosniff"


async def test_what_fires_is_shown_to_those_who_may_see_its_host(site):
    site.add_user("m", "management")
    site.add_user("p", "policymaker")
    site.permit("p", "v")
    await site.ask("PUT", f"{RULES}/%2F/r", RULE)
    client = Client(site.stage).open()
    client.declare("q", durable=True)
    client.publish("q", b"1", b"2")
    await site.context.alerting.check()
    found = await site.json("/api/leveret/alerts")
    assert [(row["queue"], row["value"], row["firing"]) for row in found["firing"]] == [
        ("q", 2, True)
    ]
    assert len(found["past"]) == 1
    assert await site.json("/api/leveret/alerts", "m") == {"firing": [], "past": []}
    assert await site.json(RULES, "p") == []
    assert await status(site, "PUT", f"{RULES}/v/r", RULE, "p") == 201
    assert await status(site, "PUT", f"{RULES}/%2F/r", RULE, "p") == 401
    assert await status(site, "PUT", f"{RULES}/v/r", RULE, "m") == 401
    assert await status(site, "DELETE", f"{RULES}/v/r", None, "m") == 401


async def test_the_audit_log_is_for_administrators(site):
    site.add_user("m", "monitoring")
    await site.ask("PUT", f"{RULES}/v/r", RULE)
    await site.ask("DELETE", f"{RULES}/v/r")
    found = await site.json("/api/leveret/audit?limit=1")
    [row] = found["rows"]
    assert (row["operation"], row["user"], row["peer"], row["way"]) == (
        "alert.clear",
        "guest",
        "127.0.0.1",
        "http",
    )
    [row] = (await site.json(f"/api/leveret/audit?before={found['before']}"))["rows"]
    assert row["operation"] == "alert.set"
    assert row["parameters"]["rule"]["secret"] == "…"
    assert (await site.json("/api/leveret/audit?operation=user."))["rows"] == []
    assert await status(site, "GET", "/api/leveret/audit?limit=x") == 400
    assert await status(site, "GET", "/api/leveret/audit", None, "m") == 401
