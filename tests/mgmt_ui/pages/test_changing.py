"""A queue is changed on its page while it is used: its arguments, its name, the names it had."""

import json
from html import unescape

import pytest

from leveret.ports.definitions import PermissionDefinition
from tests.support.browser import Browser
from tests.support.client import Client

QUEUE = "/queues/%2F/q"
HOSTILE = ("<script>alert(1)</script>", '" onload="alert(1)', "'><img src=x onerror=alert(1)>")
WRITES = (
    ("/rename", {"new_name": "other"}),
    ("/aliases/delete", {"alias": "old"}),
    ("/arguments", {"shown": "{}", "arguments": '{"x-max-length": 7}'}),
)


@pytest.fixture
def queue(site):
    """A queue `q` that was called `old`, with two arguments."""
    Client(site.stage).open().declare(
        "old", durable=True, arguments={"x-max-length": 5, "x-expires": 60_000}
    )
    return site


@pytest.fixture
async def renamed(guest, queue):
    await guest.submit("/queues/%2F/old/rename", new_name="q")
    return guest


def definition(site, name="q"):
    return site.broker.vhosts["/"].queues[name].definition


async def test_renaming(site, guest, queue):
    answer = await guest.submit("/queues/%2F/old/rename", new_name="q")
    assert answer.headers["location"] == QUEUE
    assert await guest.notices() == ["Queue old in / was renamed to q."]
    assert definition(site).aliases == ("old",)
    assert 'name="alias" value="old"' in await guest.text(QUEUE)


async def test_renaming_to_a_name_that_is_taken(site, renamed):
    Client(site.stage).open().declare("taken")
    answer = await renamed.submit(f"{QUEUE}/rename", new_name="taken")
    assert answer.headers["location"] == QUEUE
    assert "taken" in (await renamed.notices())[-1]
    assert definition(site).aliases == ("old",)


async def test_forgetting_a_name(site, renamed):
    answer = await renamed.submit(f"{QUEUE}/aliases/delete", alias="old")
    assert answer.headers["location"] == QUEUE
    assert definition(site).aliases == ()
    assert "It has no aliases" in await renamed.text(QUEUE)
    assert (await renamed.submit(f"{QUEUE}/aliases/delete", alias="old")).status_code == 404


async def test_only_what_was_edited_is_changed(site, renamed):
    text = await renamed.text(QUEUE)
    shown = json.loads(unescape(text.partition('name="shown" value="')[2].partition('"')[0]))
    assert shown == {"x-max-length": 5, "x-expires": 60_000}
    other = '{"x-max-length": 5, "x-overflow": "reject-publish"}'
    await renamed.submit(f"{QUEUE}/arguments", shown="{}", arguments=other)
    edited = json.dumps({"x-max-length": 9})
    await renamed.submit(f"{QUEUE}/arguments", shown=json.dumps(shown), arguments=edited)
    wanted = {"x-max-length": 9, "x-overflow": "reject-publish"}
    assert definition(site).arguments == wanted


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ("{", "not a JSON object"),
        ("[" * 50_000, "not a JSON"),
        ('{"x-max-length": "many"}', "x-max"),
    ],
)
async def test_arguments_that_make_no_sense(site, renamed, arguments, reason):
    before = definition(site)
    answer = await renamed.submit(f"{QUEUE}/arguments", shown="{}", arguments=arguments)
    assert answer.headers["location"] == QUEUE
    assert reason in " ".join(await renamed.notices())
    assert definition(site) == before


async def test_dead_letters_go_only_where_their_sender_may_publish(site, renamed):
    site.add_user("u", "management")
    site.stage.access.put_permission(PermissionDefinition("/", "u", "^q$", "^$", "^q$"))
    browser = Browser(site)
    await browser.sign_in("u")
    arguments = '{"x-dead-letter-exchange": "amq.fanout"}'
    answer = await browser.submit(f"{QUEUE}/arguments", shown="{}", arguments=arguments)
    assert answer.status_code == 403
    assert "x-dead-letter-exchange" not in definition(site).arguments


async def test_new_name_needs_permission_as_well(site, renamed):
    site.add_user("u", "management")
    site.stage.access.put_permission(PermissionDefinition("/", "u", "^q$", "^$", "^q$"))
    browser = Browser(site)
    await browser.sign_in("u")
    assert (await browser.submit(f"{QUEUE}/rename", new_name="mine")).status_code == 403
    assert definition(site).name == "q"


async def test_who_may_only_configure_does_not_rename(site, renamed):
    site.add_user("u", "management")
    site.stage.access.put_permission(PermissionDefinition("/", "u", ".*", ".*", "^mine-"))
    browser = Browser(site)
    await browser.sign_in("u")
    assert f"{QUEUE}/rename" not in await browser.text(QUEUE)
    assert (await browser.submit(f"{QUEUE}/rename", new_name="mine-x")).status_code == 403
    assert definition(site).name == "q"


@pytest.mark.parametrize(("verb", "fields"), WRITES)
async def test_who_may_not_configure_changes_nothing(site, renamed, verb, fields):
    site.add_user("reader", "policymaker")
    site.stage.access.put_permission(PermissionDefinition("/", "reader", "^$", "^$", "^q$"))
    browser = Browser(site)
    await browser.sign_in("reader")
    before = definition(site)
    assert (await browser.submit(QUEUE + verb, **fields)).status_code == 403
    assert definition(site) == before
    text = await browser.text(QUEUE)
    assert "old" in text
    for address in ("/rename", "/aliases/delete", "/arguments"):
        assert QUEUE + address not in text


@pytest.mark.parametrize(("verb", "fields"), WRITES)
async def test_forms_without_the_token_are_refused(renamed, verb, fields):
    answer = await renamed.submit(QUEUE + verb, **{**fields, "csrf_token": ""})
    assert answer.status_code == 403


@pytest.mark.parametrize(("verb", "fields"), WRITES)
async def test_strangers_are_refused(queue, browser, verb, fields):
    assert (await browser.submit(QUEUE + verb, **fields)).status_code == 401


@pytest.mark.parametrize("name", HOSTILE)
async def test_names_are_no_markup(guest, queue, name):
    answer = await guest.submit("/queues/%2F/old/rename", new_name=name)
    here = answer.headers["location"]
    arguments = json.dumps({"x-dead-letter-routing-key": name, "x-dead-letter-exchange": "x"})
    await guest.submit(f"{here}/arguments", shown="{}", arguments=arguments)
    answer = await guest.submit(f"{here}/rename", new_name="again")
    text = await guest.text(answer.headers["location"])
    for markup in ("<script>alert", "<img src=x", '" onload="'):
        assert markup not in text


@pytest.mark.parametrize("name", [".", "..", ".;", "..;", ";"])
async def test_queue_whose_name_is_a_step_of_a_path(site, guest, name):
    await guest.submit("/queues", vhost="/", name=name)
    assert name in site.broker.vhosts["/"].queues
    text = await guest.text("/queues")
    address = unescape(text.partition('<a href="/queues/%2F')[2].partition('"')[0])
    page = await guest.text(f"/queues/%2F{address}")
    assert f"Queue {name}" in page
    await guest.submit(f"/queues/%2F{address}/delete")
    assert name not in site.broker.vhosts["/"].queues
    site.stage.run()
