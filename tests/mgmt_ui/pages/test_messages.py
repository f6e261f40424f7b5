"""The message browser: what it finds and shows, what can be done there, and by whom."""

import json
import re

import pytest

from leveret.ports.definitions import PermissionDefinition
from tests.mgmt_ui.pages.running import running_node
from tests.support.browser import Browser
from tests.support.client import Client
from tests.support.visitor import Visitor

HERE = "/queues/%2F/q/messages"
HOSTILE = "<script>alert(1)</script>"


@pytest.fixture(scope="module")
def address(tmp_path_factory):
    with running_node(tmp_path_factory.mktemp("node")) as address:
        yield address


@pytest.fixture
def guest(address):
    with Visitor(address) as visitor:
        visitor.declare("q")
        visitor.declare("other")
        yield visitor


def offsets(text):
    return re.findall(r'name="offset" value="(\d+)"', text)


def test_an_empty_queue_says_what_to_do(guest):
    assert "Publish one below" in guest.text(HERE)


def test_newest_first_and_oldest_first_by_pages(guest):
    for number in range(53):
        guest.publish("q", f"body {number}")
    text = guest.text(HERE)
    newest = [int(offset) for offset in offsets(text)]
    assert newest == sorted(newest, reverse=True)
    assert len(newest) == 50
    older = re.search(r'<a rel="next" href="([^"]+)"', text)[1].replace("&amp;", "&")
    assert len(offsets(guest.text(older))) == 3
    assert "Back to the newest" in guest.text(older)
    oldest = [int(offset) for offset in offsets(guest.text(f"{HERE}?order=forwards"))]
    assert oldest == sorted(oldest)
    assert oldest[0] == newest[-1] - 3
    assert len(offsets(guest.text(f"{HERE}?order=forwards&from={newest[0]}"))) == 1


@pytest.mark.covers("C-214")
@pytest.mark.parametrize(
    "query",
    [
        "text=needle",
        "message_id=m-1",
        "header=customer%3D17",
        "routing_key=special&exchange=amq.topic",
        "state=ready&text=needle",
        "since=2020-01-01T00:00&text=needle",
        "sql=customer+%3D+17",
    ],
)
def test_searching(guest, query):
    binding = {"routing_key": "special"}
    guest.api.post("/bindings/%2F/e/amq.topic/q/q", json=binding)
    guest.publish("q", "hay")
    headers = {"customer": 17}
    guest.publish("special", "a needle here", "amq.topic", message_id="m-1", headers=headers)
    guest.publish("q", "more hay")
    assert len(offsets(guest.text(HERE))) == 3
    text = guest.text(f"{HERE}?{query}")
    assert len(offsets(text)) == 1
    assert "a needle here" in text


@pytest.mark.parametrize(
    ("query", "reason"),
    [
        ("from=x", "whole number"),
        ("after=-1", "whole number"),
        ("since=yesterday", "no time"),
        ("since=0001-01-01", "1970"),
        ("header=nothing", "name=value"),
        ("state=asleep", "bad criterion"),
        ("sql=((", "expected a value"),
    ],
)
def test_what_makes_no_sense_is_told(guest, query, reason):
    text = guest.text(f"{HERE}?{query}")
    assert reason in re.search(r'<p class="notice failed"[^>]*>([^<]*)', text)[1]


def test_nothing_of_the_future(guest):
    guest.publish("q", "1")
    assert "No more messages fit" in guest.text(f"{HERE}?since=2999-01-01T00:00")


@pytest.mark.covers("C-214")
def test_one_message_in_every_form(guest):
    guest.publish("q", '{"b":[1]}', headers={"n": 1}, content_type="application/json")
    [offset] = offsets(guest.text(HERE))
    text = guest.text(f"{HERE}/{offset}")
    assert "{\n  &#34;b&#34;: [\n    1\n  ]\n}" in text
    assert "application/json" in text
    assert "{&#34;b&#34;:[1]}" in guest.text(f"{HERE}/{offset}?as=text")
    assert "7b 22 62 22 3a 5b 31 5d  7d" in guest.text(f"{HERE}/{offset}?as=hex")
    download = re.search(r'href="(/api/leveret/[^"]+/body)"', text)[1]
    assert guest.client.get(download).content == b'{"b":[1]}'
    assert guest.client.get(f"{HERE}/999999").status_code == 404
    assert guest.client.get(f"{HERE}/x").status_code == 400


def test_a_strangers_text_is_no_markup(guest):
    exchange = {"type": "topic", "durable": True}
    guest.api.put(f"/exchanges/%2F/{HOSTILE.replace('/', '%2F')}", json=exchange)
    guest.publish(
        "q",
        HOSTILE,
        headers={HOSTILE: HOSTILE, '" onload="x': ["'", {"<img src=x>": 1}]},
        message_id=HOSTILE,
        content_type=HOSTILE,
        type='" onmouseover="alert(1)',
    )
    [offset] = offsets(guest.text(HERE))
    pages = [HERE, *(f"{HERE}/{offset}?as={form}" for form in ("text", "json", "hex"))]
    queries = [f"{HERE}?{key}={HOSTILE}" for key in ("text", "header", "from", "since", "tags")]
    for path in [*pages, *queries]:
        text = guest.text(path)
        assert "<script>alert" not in text
        assert "<img src=x" not in text
        assert '" onload="' not in text
        assert '" onmouseover="' not in text


@pytest.mark.covers("C-214")
def test_moving_copying_and_deleting(guest):
    for number in range(4):
        guest.publish("q", f"{number}")
    newest, *_, oldest = offsets(guest.text(HERE))
    said = guest.done(f"{HERE}/move", which="chosen", offset=oldest, to="queue", to_queue="other")
    assert said == ["1 messages of queue q were moved."]
    assert len(offsets(guest.text("/queues/%2F/other/messages"))) == 1
    fields = {"to": "exchange", "exchange_to": "amq.fanout", "which": "chosen", "offset": newest}
    assert "would have gone nowhere" in guest.done(f"{HERE}/copy", **fields)[0]
    said = guest.done(f"{HERE}/copy", which="matching", text="3", to="queue", to_queue="other")
    assert said == ["1 messages of queue q were copied."]
    assert len(offsets(guest.text(HERE))) == 3
    said = guest.done(f"{HERE}/delete", which="matching", text="3")
    assert said == ["1 messages of queue q were deleted."]
    assert len(offsets(guest.text(HERE))) == 2
    assert "choose some messages" in guest.done(f"{HERE}/delete")[0]
    assert "state which messages" in guest.done(f"{HERE}/delete", which="matching")[0]
    assert "no queue" in guest.done(f"{HERE}/move", offset="1", to_queue="nowhere")[0]


def test_publishing(guest):
    fields = {"routing_key": "q", "payload": "hello\r\nworld", "message_id": "m"}
    said = guest.done(f"{HERE}/publish", **fields, arguments=json.dumps({"a": 1}), persistent="1")
    assert said == ["The message was published to q."]
    [offset] = offsets(guest.text(HERE))
    text = guest.text(f"{HERE}/{offset}?as=text")
    assert "hello\nworld" in text
    assert "<dt>delivery_mode</dt><dd>2</dd>" in text
    said = guest.done(f"{HERE}/publish", routing_key="nobody", payload="x")
    assert "No queue took the message" in said[0]
    assert "no JSON object" in guest.done(f"{HERE}/publish", payload="x", arguments="[")[0]
    said = guest.done(f"{HERE}/publish", routing_key="q", payload="%", base64="1")
    assert "base64" in said[0]


def test_streams_keep_their_messages(guest):
    guest.declare("s", **{"x-queue-type": "stream"})
    guest.publish("s", "x")
    text = guest.text("/queues/%2F/s/messages")
    assert "Copy the messages" in text
    assert "Move the messages" not in text
    assert "Delete the messages" not in text
    [offset] = offsets(text)
    assert "is a stream" in guest.done("/queues/%2F/s/messages/delete", offset=offset)[0]


WRITES = (
    ("delete", {"offset": "0"}),
    ("move", {"offset": "0", "to_queue": "other"}),
    ("copy", {"offset": "0", "to_queue": "other"}),
    ("publish", {"routing_key": "q", "payload": "x"}),
)


@pytest.mark.parametrize(("verb", "fields"), WRITES)
def test_forms_without_the_token_are_refused(guest, verb, fields):
    answer = guest.submit(f"{HERE}/{verb}", **{**fields, "csrf_token": "wrong"})
    assert answer.status_code == 403
    assert guest.client.get(HERE).status_code == 200


@pytest.mark.parametrize(("verb", "fields"), WRITES)
async def test_who_may_not_is_refused(site, verb, fields):
    Client(site.stage).open().declare("q", durable=True)
    site.add_user("reader", "management")
    site.stage.access.put_permission(PermissionDefinition("/", "reader", "^$", "^$", "^$"))
    browser = Browser(site)
    await browser.sign_in("reader")
    assert (await browser.get(HERE)).status_code == 403
    assert (await browser.get(f"{HERE}/0")).status_code == 403
    if verb != "publish":  # which needs a running node
        assert (await browser.submit(f"{HERE}/{verb}", **fields)).status_code == 403
    assert (await Browser(site).submit(f"{HERE}/{verb}", **fields)).status_code == 401


async def test_what_somebody_may_not_do_is_not_offered(site):
    Client(site.stage).open().declare("q", durable=True)
    site.add_user("reader", "management")
    site.stage.access.put_permission(PermissionDefinition("/", "reader", "^$", "^$", "^q$"))
    browser = Browser(site)
    await browser.sign_in("reader")
    text = await browser.text(HERE)
    assert "Publish a message" not in text
    fields = {"offset": "0", "to_queue": "other"}
    assert (await browser.submit(f"{HERE}/move", **fields)).status_code == 403
    assert 'href="/queues/%2F/q/messages"' in await browser.text("/queues/%2F/q")
