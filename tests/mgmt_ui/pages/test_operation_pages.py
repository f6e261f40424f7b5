"""Alerts, usage and the audit log."""

import re

import pytest

from tests.support.browser import Browser

HOSTILE = "<script>alert(1)</script>"
RULE = {"vhost": "/", "name": "full", "condition": "backlog", "above": "10", "queues": "^q"}


def test_rules_are_set_changed_and_deleted(visitor):
    assert "there are no rules" in visitor.text("/alerts")
    said = visitor.done("/alerts", **RULE, secret="hush", webhook="http://127.0.0.1:1/")
    assert said == ["Alert rule full in / was saved."]
    text = visitor.text("/alerts?vhost=/&edit=full")
    assert "hush" not in text
    assert 'name="above" value="10.0"' in text
    secret = re.search(r'name="secret" type="password" value="([^"]*)"', text)[1]
    visitor.done("/alerts", **{**RULE, "above": "20"}, secret=secret, disabled="1")
    text = visitor.text("/alerts")
    assert "<dt>above</dt><dd>20.0</dd>" in text
    assert "<dt>enabled</dt><dd>false</dd>" in text
    assert visitor.done("/alerts/clear", vhost="/", name="full") == [
        "Alert rule full in / was deleted."
    ]
    assert "there are no rules" in visitor.text("/alerts")


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"above": "many"}, "must be a number"),
        ({"above": "nan"}, "is a number"),
        ({"above": ""}, "either above or below"),
        ({"queues": "("}, "regular expression"),
        ({"webhook": "ftp://x"}, "http://"),
        ({"condition": "boredom"}, "one of"),
    ],
)
def test_a_rule_that_makes_no_sense_is_shown_again(visitor, change, reason):
    answer = visitor.submit("/alerts", **{**RULE, **change})
    assert answer.status_code == 400
    assert reason in answer.text
    assert 'name="name" value="full"' in answer.text


def test_usage_of_queues_users_and_virtual_hosts(visitor):
    visitor.declare("used")
    visitor.publish("used", "x" * 100)
    for subject, name in (("queue", "used"), ("user", "guest"), ("vhost", "/")):
        text = visitor.text(f"/usage?of={subject}")
        assert f'<td class="name">{name}</td>' in text
        assert "data-chart=" in text
    assert "last 30 days" in visitor.text("/usage?of=nonsense&period=nonsense")


def test_the_audit_log(visitor):
    visitor.done("/users", name="audited", password="hush hush", tags="")
    visitor.submit("/users", name="audited", password="x", tags="")
    text = visitor.text("/audit")
    assert "user.add" in text
    assert "hush hush" not in text
    assert "already_exists" in text
    assert ">ui</td>" in text
    assert "user.add" in visitor.text("/audit?user=guest&operation=user.")
    assert "No record matches" in visitor.text("/audit?user=nobody")
    assert "not a time" in visitor.text("/audit?since=whenever")


def test_a_strangers_text_is_no_markup(visitor):
    fields = {"name": HOSTILE, "queues": HOSTILE, "summary": HOSTILE}
    visitor.done("/alerts", **{**RULE, **fields})
    visitor.api.put("/queues/%2F/%3Cscript%3Ealert(1)%3C%2Fscript%3E", json={})
    visitor.publish(HOSTILE, "x")
    query = f"vhost=/&edit={HOSTILE}"
    for path in ("/alerts", f"/alerts?{query}", "/audit", f"/audit?user={HOSTILE}", "/usage"):
        text = visitor.text(path)
        assert "<script>alert" not in text
        assert "&lt;script&gt;" in text


WRITES = (("/alerts", RULE), ("/alerts/clear", {"vhost": "/", "name": "full"}))


@pytest.mark.parametrize(("path", "fields"), WRITES)
async def test_who_may_not_is_refused(site, guest, path, fields):
    site.add_user("manager", "management")
    site.add_user("maker", "policymaker")  # of no virtual host
    site.permit("manager", "/")
    for user in ("manager", "maker"):
        browser = Browser(site)
        await browser.sign_in(user)
        assert (await browser.submit(path, **fields)).status_code == 403
        assert (await browser.get("/audit")).status_code == 403
    assert (await guest.submit(path, **{**fields, "csrf_token": ""})).status_code == 403
    assert (await Browser(site).submit(path, **fields)).status_code == 401


async def test_what_somebody_may_not_do_is_not_offered(site):
    site.add_user("manager", "management")
    site.permit("manager", "/")
    browser = Browser(site)
    await browser.sign_in("manager")
    text = await browser.text("/alerts")
    assert "Add rule" not in text
    assert "/audit" not in text
    assert "No traffic in this period" in await browser.text("/usage")
