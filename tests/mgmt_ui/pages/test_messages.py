"""The message browser: what it finds and shows, what can be done there, and by whom."""

import json
import re
from base64 import b64encode
from html import unescape

import pytest

from leveret.ports.definitions import PermissionDefinition
from tests.support.browser import Browser
from tests.support.client import Client

HERE = "/queues/%2F/q/messages"
HOSTILE = "<script>alert(1)</script>"


@pytest.fixture
def guest(visitor):
    visitor.declare("q")
    visitor.declare("other")
    return visitor


def offsets(text):
    return re.findall(r'name="offset" value="(\d+)"', text)


def test_an_empty_queue_says_what_to_do(guest):
    assert "There are no messages in this queue" in guest.text(HERE)


def test_newest_first_and_oldest_first_by_pages(guest):
    for number in range(53):
        guest.publish("q", f"body {number}")
    text = guest.text(HERE)
    newest = [int(offset) for offset in offsets(text)]
    assert newest == sorted(newest, reverse=True)
    assert len(newest) == 50
    older = re.search(r'<a rel="next" href="([^"]+)"', text)[1].replace("&amp;", "&")
    assert len(offsets(guest.text(older))) == 3
    assert "Newest messages" in guest.text(older)
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
        ("since=yesterday", "not a time"),
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
    assert "No more messages match" in guest.text(f"{HERE}?since=2999-01-01T00:00")


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
    assert "Published to the default exchange with key &#39;q&#39;" in text
    assert f"Stored in queue q as offset {offset}" in text
    assert "Ready: waiting for a consumer" in text
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
    assert "were unroutable" in guest.done(f"{HERE}/copy", **fields)[0]
    said = guest.done(f"{HERE}/copy", which="matching", text="3", to="queue", to_queue="other")
    assert said == ["1 messages of queue q were copied."]
    assert len(offsets(guest.text(HERE))) == 3
    said = guest.done(f"{HERE}/delete", which="matching", text="3")
    assert said == ["1 messages of queue q were deleted."]
    assert len(offsets(guest.text(HERE))) == 2
    assert "select some messages" in guest.done(f"{HERE}/delete")[0]
    assert "state which messages" in guest.done(f"{HERE}/delete", which="matching")[0]
    assert "no queue" in guest.done(f"{HERE}/move", offset="1", to_queue="nowhere")[0]


def test_publishing(guest):
    fields = {"routing_key": "q", "payload": "hello\r\nworld", "message_id": "m"}
    fields |= {"headers": json.dumps({"a": 1}), "properties": '{"priority": 5}'}
    said = guest.done(f"{HERE}/publish", **fields, persistent="1")
    assert said == ["The message was published to queue q."]
    [offset] = offsets(guest.text(HERE))
    text = guest.text(f"{HERE}/{offset}?as=text")
    assert "hello\nworld" in text
    assert "<dt>delivery_mode</dt><dd>2</dd>" in text
    assert "<dt>priority</dt><dd>5</dd>" in text
    [record] = audited(guest, "message.publish")
    assert record["user"] == "guest"
    assert record["parameters"] == {"vhost": "/", "exchange": "amq.default", "routing_key": "q"}
    said = guest.done(f"{HERE}/publish", routing_key="nobody", payload="x")
    assert "No queue took the message" in said[0]
    said = guest.done(f"{HERE}/publish", routing_key="q", payload="YQ\r\n==", base64="1")
    assert said == ["The message was published to queue q."]
    assert '<span class="code">a</span>' in guest.text(HERE)


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"headers": "["}, "the headers are not a JSON object"),
        ({"properties": "5"}, "the properties are not a JSON object"),
        ({"properties": '{"priority": "high"}'}, "priority cannot be"),
        ({"expiration": "soon"}, "expiration"),
        ({"delay_seconds": "a while"}, "delay_seconds is not a whole number"),
        ({"base64": "1"}, "payload is not base64"),
        ({"exchange": "nowhere"}, "no exchange 'nowhere'"),
    ],
)
def test_a_message_that_is_none_is_shown_again(guest, fields, reason):
    typed = {"routing_key": "q", "payload": "typed % by hand", **fields}
    answer = guest.submit(f"{HERE}/publish", **typed)
    assert answer.status_code in {400, 404}
    assert reason in unescape(answer.text)
    assert "typed % by hand</textarea>" in answer.text
    assert offsets(guest.text(HERE)) == []


def form_of(text):
    """The fields of the form for sending again, as a browser would send them."""
    part = text[text.index('class="card upload"') :]
    fields = {
        name: unescape(value)
        for name, value in re.findall(r'<input name="(\w+)" value="([^"]*)"', part)
    }
    texts = re.findall(r'<textarea name="(\w+)"[^>]*>\n(.*?)</textarea>', part, re.DOTALL)
    fields |= {name: unescape(value).replace("\n", "\r\n") for name, value in texts}
    boxes = re.findall(r'type="(?:checkbox|radio)" name="(\w+)" value="(\w+)" checked', part)
    return fields | dict(boxes)


def stored(guest, queue="q"):
    """The messages of a queue, the oldest first."""
    return guest.api.get(f"/leveret/queues/%2F/{queue}/messages").json()["messages"]


def audited(guest, operation):
    records = guest.api.get(f"/leveret/audit?operation={operation}&limit=1").json()
    return records["rows"]


def test_a_changed_copy_takes_the_place_of_a_message(guest):
    headers = {"n": 1, "gone": True, "when": {"at": [1]}}
    guest.publish(
        "q", '{"a": 1}\n', headers=headers, content_type="text/json", priority=3, delivery_mode=2
    )
    [before] = stored(guest)
    address = f"{HERE}/{before['offset']}/edit"
    fields = form_of(guest.text(address))
    assert (fields["payload"], fields["persistent"]) == ('{"a": 1}\r\n', "1")
    assert json.loads(fields["headers"]) == headers
    assert json.loads(fields["properties"]) == {"priority": 3}
    fields["headers"] = '{"n": 1, "when": {"at": [1]}, "new": "x"}'
    fields |= {"payload": '{"a": 2}\r\n', "content_type": "", "properties": '{"priority": 4}'}
    said = guest.done(address, **fields)
    assert said == [f"Message {before['offset']} was replaced by a copy at the tail of queue q."]
    [after] = stored(guest)
    assert after["offset"] > before["offset"]
    assert after["payload"] == '{"a": 2}\n'
    assert after["properties"] == {
        "headers": {"n": 1, "when": {"at": [1]}, "new": "x"},
        "priority": 4,
        "delivery_mode": 2,
    }
    [record] = audited(guest, "message.edit")
    assert record["way"] == "ui"
    assert record["parameters"]["changes"]["properties"] == {"priority": 4, "content_type": None}
    assert "a" not in record["parameters"]["changes"]["payload"]


def test_what_a_form_cannot_say_stays_as_it_was(guest):
    body = b"\x00\xff\r\n"
    properties = {"timestamp": 1_700_000_000, "headers": {"n": 5}}
    asked = {"properties": properties, "routing_key": "q", "payload_encoding": "base64"}
    for payload in (body, b"\n\none\r\ntwo", b"\r\none\r\n", b"", b"\n<b> &amp; \xc3\xa4"):
        asked["payload"] = b64encode(payload).decode()
        guest.api.post("/exchanges/%2F/amq.default/publish", json=asked)
        before = stored(guest)[-1]
        address = f"{HERE}/{before['offset']}/edit"
        guest.done(address, **form_of(guest.text(address)))
        after = stored(guest)[-1]
        assert after["offset"] > before["offset"]
        assert {**after, "offset": 0, "time_ms": 0} == {**before, "offset": 0, "time_ms": 0}


def test_a_long_body_is_sent_as_it_is(guest):
    guest.publish("q", "x" * 300_000)
    [before] = stored(guest)
    address = f"{HERE}/{before['offset']}/edit"
    text = guest.text(address)
    assert "too large to be edited here" in text
    fields = form_of(text)
    assert "payload" not in fields
    guest.done(address, **{**fields, "headers": '{"a": 1}'})
    [after] = stored(guest)
    assert (after["payload_bytes"], after["properties"]["headers"]) == (300_000, {"a": 1})


def test_a_copy_is_routed_anew(guest):
    guest.api.post("/bindings/%2F/e/amq.topic/q/other", json={"routing_key": "k.*"})
    guest.publish("q", "old", user_id="guest", headers={"BCC": ["nobody"], "n": 1})
    [before] = stored(guest)
    address = f"{HERE}/{before['offset']}/edit"
    fields = form_of(guest.text(address))
    assert fields["routing_key"] == "q"
    fields |= {"to": "exchange", "exchange": "amq.topic", "routing_key": "k.1", "payload": "new"}
    said = guest.done(address, **{**fields, "routing_key": "nobody"})
    assert "No queue took the message" in said[0]
    assert len(stored(guest)) == 1  # the original stays as long as its copy is nowhere
    guest.done(address, **{name: value for name, value in fields.items() if name != "remove"})
    assert len(stored(guest)) == 1
    said = guest.done(address, **fields)
    assert said[0].endswith("with routing key “k.1”. The original was deleted.")
    assert stored(guest) == []
    copies = stored(guest, "other")
    assert [copy["payload"] for copy in copies] == ["new", "new"]
    assert copies[0]["properties"]["headers"] == {"n": 1}
    assert "user_id" not in copies[0]["properties"]
    [record] = audited(guest, "message.publish")
    assert record["parameters"] == {
        "vhost": "/",
        "exchange": "amq.topic",
        "routing_key": "k.1",
        "copy_of": f"q {before['offset']}",
    }
    assert audited(guest, "message.delete")


def test_a_copy_beside_its_original(guest):
    guest.publish("q", "twice")
    [before] = stored(guest)
    address = f"{HERE}/{before['offset']}/edit"
    fields = form_of(guest.text(address))
    del fields["remove"]
    assert guest.done(address, **fields) == ["The message was published to queue q."]
    assert [message["payload"] for message in stored(guest)] == ["twice", "twice"]


def test_an_edit_that_makes_no_message_is_shown_again(guest):
    guest.publish("q", "old")
    [before] = stored(guest)
    address = f"{HERE}/{before['offset']}/edit"
    fields = form_of(guest.text(address))
    for wrong, reason in (
        ({"headers": "{"}, "the headers are not a JSON object"),
        ({"properties": '{"user_id": "x"}'}, "property 'user_id' cannot be changed"),
        ({"expiration": "soon"}, "expiration"),
        ({"payload": "%", "base64": "1"}, "payload"),
        ({"to": "exchange", "exchange": "nowhere"}, "no exchange 'nowhere'"),
    ):
        answer = guest.submit(address, **{**fields, "message_id": "typed", **wrong})
        assert answer.status_code in {400, 404}
        assert reason in unescape(answer.text)
        assert form_of(answer.text)["message_id"] == "typed"
    assert stored(guest) == [before]
    for nowhere in ("999999", "x", "1" * 30):
        assert guest.client.get(f"{HERE}/{nowhere}/edit").status_code == 404
        assert guest.submit(f"{HERE}/{nowhere}/edit", **fields).status_code == 404


def test_a_message_of_a_stream_is_sent_again_and_stays(guest):
    guest.declare("s", **{"x-queue-type": "stream"})
    guest.publish("s", "x")
    there = "/queues/%2F/s/messages"
    [offset] = offsets(guest.text(there))
    text = guest.text(f"{there}/{offset}/edit")
    assert "Delete the original" not in text
    fields = form_of(text)
    fields |= {"to": "exchange", "exchange": "", "routing_key": "q", "payload": "y"}
    said = guest.done(f"{there}/{offset}/edit", **fields, remove="1")
    assert "is a stream" in said[0]
    assert [message["payload"] for message in stored(guest)] == ["y"]
    assert len(stored(guest, "s")) == 1


def test_publishing_on_the_page_of_an_exchange(guest):
    here = "/exchanges/%2F/amq.topic"
    guest.api.post("/bindings/%2F/e/amq.topic/q/q", json={"routing_key": "k.*"})
    assert f'action="{here}/publish"' in guest.text(here)
    fields = {"routing_key": "k.1", "payload": "x", "headers": '{"a": 1}'}
    said = guest.done(f"{here}/publish", **fields)
    assert said == ["The message was published to exchange amq.topic with routing key “k.1”."]
    [message] = stored(guest)
    assert (message["exchange"], message["properties"]["headers"]) == ("amq.topic", {"a": 1})
    data = {"csrf_token": guest.token, **fields, "routing_key": HOSTILE}
    answer = guest.client.post(f"{here}/publish", data=data, headers={"hx-request": "true"})
    assert answer.status_code == 200
    assert answer.text.startswith('<p class="notice failed">No queue took the message')
    assert "<script>alert" not in answer.text
    assert "not a JSON object" in guest.done(f"{here}/publish", headers="x")[0]
    assert guest.submit("/exchanges/%2F/nowhere/publish").status_code == 404
    inner = {"type": "fanout", "internal": True}
    guest.api.put("/exchanges/%2F/inner", json=inner)
    assert "Publish a message" not in guest.text("/exchanges/%2F/inner")
    assert guest.submit("/exchanges/%2F/inner/publish", payload="x").status_code == 403


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
    ("0/edit", {"routing_key": "q", "payload": "x"}),
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
    assert (await browser.get(f"{HERE}/0/edit")).status_code == 403
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
    assert "Publish a message" not in await browser.text("/exchanges/%2F/amq.topic")
    fields = {"offset": "0", "to_queue": "other"}
    assert (await browser.submit(f"{HERE}/move", **fields)).status_code == 403
    assert 'href="/queues/%2F/q/messages"' in await browser.text("/queues/%2F/q")
