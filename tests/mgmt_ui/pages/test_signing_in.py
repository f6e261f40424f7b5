"""Sign-in keeps out who should not get in, and no one acts by another's browser."""

import asyncio

import pytest

from leveret.mgmt_ui.pages.signing_in import local_address
from leveret.mgmt_ui.sessions import COOKIE
from leveret.ports.definitions import UserDefinition
from tests.support.browser import Browser
from tests.support.site import Site


async def test_strangers_are_led_to_the_form(browser):
    answer = await browser.get("/queues?page=2")
    assert answer.status_code == 303
    assert answer.headers["location"] == "/login?wanted=%2Fqueues%3Fpage%3D2"
    form = await browser.text(answer.headers["location"])
    assert '<input type="hidden" name="wanted" value="/queues?page=2">' in form


async def test_strangers_cannot_tell_what_there_is(browser):
    for path in ("/queues/%2F/{}", "/exchanges/%2F/{}", "/vhosts/{}"):
        for name in ("there", "nowhere"):
            assert (await browser.get(path.format(name))).status_code == 303


async def test_what_is_no_page_for_people_is_refused(browser):
    assert (await browser.submit("/logout")).status_code == 401
    renewed = await browser.get("/overview", hx_request="true")
    assert renewed.status_code == 401
    assert renewed.headers["hx-refresh"] == "true"


async def test_the_cookie_is_secure_behind_a_proxy_with_tls(browser):
    fields = {"user": "guest", "password": "guest"}
    answer = await browser.submit("/login", {"origin": "https://node"}, **fields)
    assert answer.status_code == 303
    assert "secure" in answer.headers["set-cookie"].lower()
    answer = await browser.submit("/login", {"origin": "http://node"}, **fields)
    assert "secure" not in answer.headers["set-cookie"].lower()


async def test_signing_in_leads_to_what_was_wanted(browser):
    answer = await browser.submit("/login", user="guest", password="guest", wanted="/overview?x=1")
    assert (answer.status_code, answer.headers["location"]) == (303, "/overview?x=1")
    cookie = answer.headers["set-cookie"].lower()
    assert cookie.startswith(COOKIE)
    assert "httponly" in cookie
    assert "samesite=strict" in cookie
    assert "path=/;" in cookie
    assert "secure" not in cookie
    assert "guest" in await browser.text("/overview")


async def test_cookie_stays_on_tls(site):
    browser = Browser(site, base_url="https://node")
    assert "secure" in (await browser.sign_in()).headers["set-cookie"].lower()


async def test_wrong_password_and_unknown_user_are_answered_alike_and_late():
    site = Site(login_delay_seconds=0.05)
    site.stage.access.put_user(UserDefinition("known", "hash of something else", ("management",)))
    loop, answers = asyncio.get_running_loop(), []
    for user in ("known", "unknown"):
        asked = loop.time()
        answer = await Browser(site).sign_in(user)
        assert answer.status_code == 401
        assert "set-cookie" not in answer.headers
        assert loop.time() - asked >= 0.05
        answers.append(answer.text.replace(f'value="{user}"', ""))
    assert answers[0] == answers[1]
    assert "Unknown user or wrong password." in answers[0]


async def test_users_without_a_tag_are_kept_out(site):
    site.add_user("app", "impersonator")
    answer = await Browser(site).sign_in("app")
    assert answer.status_code == 401
    assert "no tag that lets it in" in answer.text
    assert "set-cookie" not in answer.headers


async def test_guest_signs_in_from_this_machine_only(site):
    answer = await Browser(site, peer="192.0.2.1").sign_in()
    assert answer.status_code == 401
    assert "own machine" in answer.text


async def test_stolen_cookie_of_guest_is_good_on_this_machine_only(site, guest):
    elsewhere = Browser(site, peer="192.0.2.1")
    elsewhere.client.cookies = guest.client.cookies
    assert (await elsewhere.get("/overview")).status_code == 403


async def test_who_loses_the_tags_loses_the_pages(site, guest):
    site.add_user("guest")
    answer = await guest.get("/overview")
    assert answer.status_code == 403
    assert "Not management user" in answer.text


async def test_signing_out(site, guest):
    cookie = guest.client.cookies[COOKIE]
    answer = await guest.submit("/logout")
    assert (answer.status_code, answer.headers["location"]) == (303, "/login")
    assert COOKIE not in guest.client.cookies
    guest.client.cookies.set(COOKIE, cookie)
    assert (await guest.get("/overview")).status_code == 303


async def test_signing_in_anew_ends_the_old_session(guest):
    cookie = guest.client.cookies[COOKIE]
    await guest.sign_in()
    assert guest.client.cookies[COOKIE] != cookie
    guest.client.cookies.set(COOKIE, cookie)
    assert (await guest.get("/overview")).status_code == 303


@pytest.mark.parametrize("token", ["", "wrong", "é"])
async def test_forms_need_the_token(guest, token):
    answer = await guest.submit("/logout", csrf_token=token)
    assert answer.status_code == 403
    assert "is not from this session" in answer.text
    assert (await guest.get("/overview")).status_code == 200


async def test_token_may_come_in_a_header(guest):
    answer = await guest.client.post("/logout", headers={"x-csrf-token": guest.token})
    assert answer.status_code == 303


@pytest.mark.parametrize(
    "headers",
    [
        {"origin": "http://evil"},
        {"origin": "null"},
        {"origin": "http://node:81"},
        {"sec-fetch-site": "cross-site"},
        {"sec-fetch-site": "same-site"},
    ],
)
async def test_other_sites_cannot_send_forms(browser, headers):
    fields = {"user": "guest", "password": "guest"}
    answer = await browser.submit("/login", headers=headers, **fields)
    assert answer.status_code == 403
    assert "set-cookie" not in answer.headers
    own = {"origin": "http://node", "sec-fetch-site": "same-origin"}
    assert (await browser.submit("/login", headers=own, **fields)).status_code == 303


@pytest.mark.parametrize(
    ("content", "status"), [(b"\xff=%zz", 400), (b"a=1&" * 300, 400), (b"a" * (2 << 20), 413)]
)
async def test_what_is_no_form(guest, content, status):
    answer = await guest.client.post("/logout", content=content)
    assert answer.status_code == status


async def test_api_takes_the_session_for_looking(guest):
    answer = await guest.get("/api/whoami")
    assert (answer.status_code, answer.json()["name"]) == (200, "guest")


async def test_api_takes_the_session_for_changing_with_the_token_only(site, guest):
    path, queues = "/api/queues/%2F/q", site.broker.vhosts["/"].queues
    for headers in ({}, {"x-csrf-token": "wrong"}):
        answer = await guest.client.put(path, headers=headers, json={"durable": True})
        assert (answer.status_code, answer.json()["error"]) == (403, "forbidden")
        assert "q" not in queues
    answer = await guest.client.put(
        path, headers={"x-csrf-token": guest.token}, json={"durable": True}
    )
    assert answer.status_code == 201
    assert "q" in queues


async def test_credentials_go_before_the_session(site, guest):
    site.add_user("u", "management")
    answer = await guest.client.get("/api/whoami", auth=("u", "u"))
    assert answer.json()["name"] == "u"
    answer = await guest.client.get("/api/whoami", auth=("u", "wrong"))
    assert answer.status_code == 401


@pytest.mark.parametrize(
    "wanted",
    ["", "//evil", "/\\evil", "http://evil", "javascript:alert(1)", "/a\\b", "/\n/evil", "/login"],
)
def test_nobody_is_led_away(wanted):
    assert local_address(wanted) == "/overview"


async def test_names_are_no_markup(browser):
    answer = await browser.submit("/login", user='"><script>alert(1)</script>', password="x")
    assert "<script>alert" not in answer.text
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in answer.text
