"""Rules for every page: headers, files, errors."""

import gzip
import re
import threading

import pytest

from leveret.mgmt_ui.pages import application, overview
from leveret.mgmt_ui.pages.assets import DIRECTORY, Assets
from leveret.mgmt_ui.pages.rendering import Renderer


@pytest.mark.parametrize("path", ["/", "/login", "/overview", "/nowhere", "/static/x/y"])
async def test_browsers_are_bound(browser, path):
    headers = (await browser.get(path)).headers
    policy = headers["content-security-policy"]
    assert "default-src 'self'" in policy
    assert "frame-ancestors 'none'" in policy
    assert "unsafe" not in policy
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["referrer-policy"] == "same-origin"
    assert headers["cache-control"] == "no-store"


async def test_pages_bring_no_script_or_style_of_their_own(guest):
    for path in ("/login", "/overview"):
        text = await guest.text(path) if path != "/login" else (await guest.get(path)).text
        assert not re.search(r"<script(?![^>]*src=)", text)
        assert not re.search(r"<style|\son\w+=|\sstyle=|javascript:", text)


async def test_files_are_kept_for_ever_under_an_address_of_their_contents(browser):
    addresses = re.findall(r'(?:href|src)="(/static/[^"]+)"', await browser.text("/login"))
    assert len(addresses) >= 5
    for address in addresses:
        answer = await browser.get(address)
        assert answer.status_code == 200
        assert "immutable" in answer.headers["cache-control"]
        assert "content-security-policy" in answer.headers
        again = await browser.get(address, if_none_match=answer.headers["etag"])
        assert (again.status_code, again.content) == (304, b"")
        changed = re.sub("/static/[0-9a-f]+/", "/static/0123456789abcdef/", address)
        assert (await browser.get(changed)).status_code == 404


async def test_files_are_packed_for_whoever_can_unpack(browser):
    address = Assets().address("leveret.js")
    plain = await browser.get(address, accept_encoding="identity")
    packed = await browser.get(address, accept_encoding="gzip")
    assert "content-encoding" not in plain.headers
    assert packed.headers["content-encoding"] == "gzip"
    assert packed.headers["vary"] == "accept-encoding"
    assert packed.content == plain.content
    assert int(packed.headers["content-length"]) < len(plain.content)
    assert gzip.compress(plain.content, mtime=0)


async def test_files_above_the_directory_are_not_served(guest):
    digest = Assets().address("leveret.js").split("/")[2]
    for name in ("../assets.py", "%2e%2e/assets.py", "/etc/passwd"):
        assert (await guest.get(f"/static/{digest}/{name}")).status_code == 404


def test_licences_are_beside_what_is_not_ours():
    vendored = {file.stem for file in application_files("*.min.js")}
    licences = {file.stem for file in application_files("*.LICENSE")}
    assert {name.removesuffix(".min") for name in vendored} == licences


def application_files(pattern):
    found = list((DIRECTORY / "vendor").glob(pattern))
    assert found
    return found


async def test_unknown_address(guest):
    answer = await guest.get("/nowhere")
    assert answer.status_code == 404
    assert "Not found" in answer.text
    assert "Sign out" in answer.text


async def test_wrong_method(guest):
    assert (await guest.client.delete("/overview")).status_code == 405


async def test_mistake_of_ours_is_answered(guest, monkeypatch):
    async def fail(*_):
        raise RuntimeError("secret detail")

    monkeypatch.setattr(overview, "message_counts", fail)
    answer = await guest.get("/overview")
    assert answer.status_code == 500
    assert "Internal error" in answer.text
    assert "secret detail" not in answer.text


async def test_mistake_in_a_template_is_answered(guest, monkeypatch):
    render = Renderer.render

    def fail(self, template, **values):
        if template == "queues.html.j2":
            raise KeyError("template")
        return render(self, template, **values)

    monkeypatch.setattr(Renderer, "render", fail)
    answer = await guest.get("/queues")
    assert answer.status_code == 500
    assert "Please report this as a bug" in answer.text


async def test_pages_become_text_beside_the_event_loop(guest, monkeypatch):
    threads = set()
    render = Renderer.render

    def noted(self, template, **values):
        threads.add(threading.get_ident())
        return render(self, template, **values)

    monkeypatch.setattr(Renderer, "render", noted)
    for path in ("/queues", "/overview", "/nowhere"):
        answer = await guest.get(path)
        assert int(answer.headers["content-length"]) == len(answer.content) > 0
    assert threads
    assert threading.get_ident() not in threads


async def test_the_first_page_is_the_overview(guest):
    answer = await guest.get("/")
    assert (answer.status_code, answer.headers["location"]) == (303, "/overview")


async def test_navigation_leads_to_pages_that_are_there(guest):
    text = await guest.text("/overview")
    navigation = text[text.index("<nav") : text.index("</nav>")]
    addresses = re.findall(r'href="([^"]+)"', navigation)
    assert "/overview" in addresses
    for address in addresses:
        assert 'aria-current="page"' in await guest.text(address)


async def test_theme_is_the_browsers_choice(guest):
    assert "data-theme" not in (await guest.text("/overview")).partition("<head>")[0]
    guest.client.cookies.set("leveret_theme", "dark")
    assert '<html lang="en" data-theme="dark">' in await guest.text("/overview")
    guest.client.cookies.set("leveret_theme", '"><script>')
    assert "<script>" not in (await guest.text("/overview")).partition("<head>")[0]


def test_every_router_is_in_the_application():
    assert overview.router in application.ROUTERS
