"""Users, limits, policies and definitions: what administrators and policymakers do on pages."""

import json

import pytest

from leveret.mgmt_ui.api.problems import ApiError
from leveret.mgmt_ui.pages.uploads import parts_of
from tests.support.browser import Browser

HOSTILE = "<script>alert(1)</script>"


async def test_a_users_life(site, guest, monkeypatch):
    answer = await guest.submit("/users", name="a b", password="p", tags="management, x")
    assert (answer.status_code, answer.headers["location"]) == (303, "/users/a%20b")
    assert site.stage.access.user("a b").tags == ("management", "x")
    assert '<a href="/users/a%20b">a b</a>' in await guest.text("/users")
    patterns = {"configure": "^a", "write": "^b", "read": "^c"}
    await guest.submit("/users/a%20b/permissions", vhost="/", **patterns)
    topic = {"vhost": "/", "exchange": "amq.topic", "write": "^d", "read": "^e"}
    await guest.submit("/users/a%20b/topic-permissions", **topic)
    await guest.submit(
        "/limits", kind="user", name="a b", limit="max-channels", value="7", back="user"
    )
    text = await guest.text("/users/a%20b")
    for pattern in ("^a", "^b", "^c", "^d", "^e"):
        assert f">{pattern}</td>" in text
    assert "<dt>max-channels</dt><dd>7</dd>" in text
    before = site.stage.access.user("a b").password_hash
    await guest.submit("/users/a%20b/password", password="other")
    assert site.stage.access.user("a b").password_hash != before
    await guest.submit("/users/a%20b/tags", tags="")
    assert site.stage.access.user("a b").tags == ()
    await guest.submit("/users/a%20b/permissions/clear", vhost="/")
    await guest.submit("/users/a%20b/topic-permissions/clear", vhost="/", exchange="amq.topic")
    assert "has no permissions, and cannot access" in await guest.text("/users/a%20b")
    answer = await guest.submit("/users/a%20b/delete")
    assert answer.headers["location"] == "/users"
    assert site.stage.access.user("a b") is None
    assert (await guest.get("/users/a%20b")).status_code == 404


async def test_a_user_who_makes_no_sense_is_shown_again(guest):
    answer = await guest.submit("/users", name="guest", password="secret word", tags="mine")
    assert answer.status_code == 400
    assert "exists already" in answer.text
    assert 'value="mine"' in answer.text
    assert "secret word" not in answer.text
    answer = await guest.submit("/users", name="u", password="")
    assert "blank" in answer.text
    await guest.submit("/users/guest/permissions", vhost="/", configure="(", write="", read="")
    assert "(" in (await guest.notices())[0]


async def test_limits(site, guest):
    assert "No limits are set" in await guest.text("/limits")
    await guest.submit("/limits", kind="vhost", name="/", limit="max-queues", value="3")
    assert site.broker.vhosts["/"].definition.limits == {"max-queues": 3}
    assert ">max-queues</td>" in await guest.text("/limits")
    await guest.submit("/limits/clear", kind="vhost", name="/", limit="max-queues")
    assert "No limits are set" in await guest.text("/limits")
    assert (await guest.submit("/limits", kind="vhost", name="/", limit="x")).status_code == 400
    await guest.submit("/limits", kind="planet", name="/", limit="x", value="1")
    assert "not of a planet" in (await guest.notices())[-1]


async def test_policies(site, guest):
    fields = {"vhost": "/", "name": "p", "pattern": "^a", "arguments": '{"max-length": 5}'}
    answer = await guest.submit("/policies", **fields, priority="3", apply_to="queues")
    assert answer.status_code == 303
    text = await guest.text("/policies")
    assert "<dt>max-length</dt><dd>5</dd>" in text
    assert "/policies?vhost=%2F&amp;edit=p" in text
    text = await guest.text("/policies?vhost=%2F&edit=p")
    assert "{&#34;max-length&#34;: 5}</textarea>" in text
    assert 'value="3"' in text
    await guest.submit("/policies", **fields, operator="1", apply_to="queues")
    policies = site.administration.policies
    assert len(policies.select("/", operator=True)) == 1
    await guest.submit("/policies/clear", vhost="/", name="p", operator="1")
    await guest.submit("/policies/clear", vhost="/", name="p")
    assert not policies.select("/", operator=True)
    assert not policies.select("/", operator=False)
    answer = await guest.submit("/policies", **{**fields, "arguments": '{"no-such": 1}'})
    assert answer.status_code == 400
    assert 'value="^a"' in answer.text


async def test_a_policy_without_effect_is_told(guest):
    definition = '{"ha-mode": "all"}'
    await guest.submit("/policies", vhost="/", name="p", pattern="", arguments=definition)
    done, warning = await guest.notices("/policies")
    assert done == "Policy p in / was saved."
    assert warning.startswith("setting ha-mode of policies has no effect: ")


async def test_an_import_tells_what_exists_otherwise(guest):
    rows = [{"vhost": "/", "name": f"q{number}"} for number in range(5)]
    await upload(guest, json.dumps({"queues": rows}).encode())
    await guest.notices()
    document = {"queues": [{**row, "durable": False} for row in rows]}
    await upload(guest, json.dumps(document).encode())
    imported, *kept, more = await guest.notices()
    assert imported == "Imported: nothing."
    assert len(kept) == 3
    assert "q0" in kept[0]
    assert "stays as it is: durable is true" in kept[0]
    assert "--dry-run" in more


async def test_definitions_go_out_and_in(site, guest):
    await guest.submit("/vhosts", name="v")
    answer = await guest.get("/definitions/export")
    assert 'filename="leveret-definitions.json"' in answer.headers["content-disposition"]
    document = answer.json()
    assert {vhost["name"] for vhost in document["vhosts"]} == {"/", "v"}
    await guest.submit("/vhosts/v/delete")
    document |= {"users": []}  # whose hashes are none here
    answer = await upload(guest, json.dumps(document).encode())
    assert answer.headers["location"] == "/definitions"
    assert "2 vhosts" in (await guest.notices())[-1]
    assert "v" in site.broker.vhosts
    of_vhost = (await guest.get("/definitions/export?vhost=v")).json()
    assert "vhosts" not in of_vhost
    assert (await guest.get("/definitions/export?vhost=nowhere")).status_code == 404


async def upload(browser, content, token=None, **fields):
    return await browser.client.post(
        "/definitions/import",
        data={"csrf_token": browser.token if token is None else token, **fields},
        files={"document": ("definitions.json", content, "application/json")},
    )


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "select a file"),
        (b"{", "not valid JSON"),
        (b"\xff\xfe", "not valid JSON"),
        (b"[" * 100_000, "not valid JSON"),
        (b'{"queues": 1}', "queues"),
        (json.dumps({"users": [{"name": HOSTILE}]}).encode(), "users"),
    ],
)
async def test_documents_that_make_no_sense(guest, content, reason):
    await upload(guest, content)
    [text] = await guest.notices("/definitions")
    assert reason in text


async def test_uploads_need_the_token(guest):
    assert (await upload(guest, b"{}", token="")).status_code == 403
    assert (await guest.submit("/definitions/import")).status_code == 400


def test_parts_of_a_form():
    body = b'--x\r\nContent-Disposition: form-data; name="a"\r\n\r\n\xff\r\n1\r\n--x--\r\n'
    assert parts_of("multipart/form-data; boundary=x", body) == {"a": b"\xff\r\n1"}
    assert parts_of("multipart/form-data; boundary=y", body) == {}
    assert parts_of("multipart/form-data", body) == {}
    with pytest.raises(ApiError):
        parts_of("text/plain", body)


async def test_names_are_no_markup(site, guest):
    await guest.submit("/users", name=HOSTILE, password="p", tags=HOSTILE)
    user = "/users/%3Cscript%3Ealert%281%29%3C%2Fscript%3E"
    await guest.submit(f"{user}/permissions", vhost="/", configure=HOSTILE, write="", read="")
    topic = {"vhost": "/", "exchange": HOSTILE, "write": HOSTILE, "read": ""}
    await guest.submit(f"{user}/topic-permissions", **topic)
    fields = {"vhost": "/", "name": HOSTILE, "pattern": HOSTILE}
    arguments = json.dumps({"dead-letter-exchange": HOSTILE})
    assert (await guest.submit("/policies", **fields, arguments=arguments)).status_code == 303
    await guest.submit("/limits", kind="user", name=HOSTILE, limit="max-channels", value="7")
    for path in ("/users", user, "/policies", f"/policies?vhost=/&edit={HOSTILE}", "/limits"):
        text = await guest.text(path)
        assert "<script>alert" not in text
        assert "&lt;script&gt;" in text


WRITES = (
    ("/users", {"name": "new", "password": "p"}),
    ("/users/guest/password", {"password": "p"}),
    ("/users/guest/tags", {"tags": ""}),
    ("/users/guest/delete", {}),
    ("/users/maker/permissions", {"vhost": "/", "configure": ".*", "write": ".*", "read": ".*"}),
    ("/users/guest/permissions/clear", {"vhost": "/"}),
    ("/users/guest/topic-permissions", {"vhost": "/", "exchange": "amq.topic"}),
    ("/users/guest/topic-permissions/clear", {"vhost": "/", "exchange": "amq.topic"}),
    ("/limits", {"kind": "vhost", "name": "/", "limit": "max-queues", "value": "0"}),
    ("/limits/clear", {"kind": "vhost", "name": "/", "limit": "max-queues"}),
    ("/policies", {"vhost": "/", "name": "p", "pattern": "", "operator": "1"}),
    ("/policies/clear", {"vhost": "/", "name": "p", "operator": "1"}),
    ("/policies", {"vhost": "closed", "name": "p", "pattern": ""}),
    ("/definitions/import", {}),
)


@pytest.mark.parametrize(("path", "fields"), WRITES)
async def test_what_a_policymaker_may_not_do_is_refused(site, path, fields):
    site.administration.add_vhost("closed", "", [], "classic")
    site.add_user("maker", "policymaker")
    site.permit("maker", "/")
    browser = Browser(site)
    await browser.sign_in("maker")
    assert (await browser.submit(path, **fields)).status_code == 403


@pytest.mark.parametrize(("path", "fields"), WRITES[:-1])
async def test_forms_without_the_token_are_refused(guest, path, fields):
    assert (await guest.submit(path, **{**fields, "csrf_token": ""})).status_code == 403


@pytest.mark.parametrize(("path", "fields"), WRITES)
async def test_strangers_are_refused(browser, path, fields):
    assert (await browser.submit(path, **fields)).status_code == 401


async def test_policymakers_set_policies_and_managers_see_them(site, guest):
    fields = {"vhost": "/", "name": "p", "pattern": "", "arguments": '{"max-length": 5}'}
    for name, tag, status in (("maker", "policymaker", 303), ("manager", "management", 403)):
        site.add_user(name, tag)
        site.permit(name, "/")
        browser = Browser(site)
        await browser.sign_in(name)
        assert (await browser.submit("/policies", **fields)).status_code == status
        text = await browser.text("/policies")
        assert ("Add policy" in text) == (status == 303)
        assert "Operator policy" not in text
        assert "/users" not in text
        for path in ("/users", "/users/guest", "/limits", "/definitions", "/definitions/export"):
            assert (await browser.get(path)).status_code == 403


async def test_policies_of_other_virtual_hosts_are_hidden(site, guest):
    site.administration.add_vhost("closed", "", [], "classic")
    fields = {"name": "secret-policy", "pattern": "", "arguments": '{"max-length": 5}'}
    await guest.submit("/policies", vhost="closed", **fields)
    site.add_user("maker", "policymaker")
    site.permit("maker", "/")
    browser = Browser(site)
    await browser.sign_in("maker")
    assert "secret-policy" not in await browser.text("/policies")
    assert "secret-policy" not in await browser.text("/policies?vhost=closed&edit=secret-polic")
