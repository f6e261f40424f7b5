"""Windows, numbering publishers, half messages, and the keys of virtual hosts."""

import pytest

from leveret.ports.definitions import PermissionDefinition
from tests.support.browser import Browser
from tests.support.visitor import Visitor

HOSTILE = "<script>alert(1)</script>"


def test_windows_forget_what_they_have_seen(visitor):
    visitor.declare("once", **{"x-dedup-window": 60_000})
    for _ in range(3):
        visitor.publish("once", "x", message_id="m1")
    text = visitor.text("/once")
    assert '<a href="/queues/%2F/once">once</a>' in text
    assert '<td class="number">2</td>' in text  # duplicates
    window = {"vhost": "/", "kind": "queue", "name": "once"}
    said = visitor.done("/once/forget", **window, id="m1")
    assert said == ["Id m1 was removed from the window of queue once."]
    assert "no message 'm1'" in visitor.done("/once/forget", **window, id="m1")[0]
    assert visitor.submit("/once/forget", **{**window, "kind": "x"}, id="m1").status_code == 400


def test_publishers_that_number(visitor):
    visitor.declare("numbered")
    headers = {"x-producer-id": "till 1", "x-producer-epoch": 0, "x-producer-seq": 0}
    visitor.publish("numbered", "x", headers=headers)
    assert "till 1" in visitor.text("/once?vhost=%2F")
    said = visitor.done("/once/producers/forget", vhost="/", id="till 1")
    assert said == [
        "Producer till 1 was deleted. It may start again with any epoch and sequence number 0."
    ]
    assert "till 1" not in visitor.client.get("/once").text


def prepare(visitor, id_):
    headers = {"x-prepare": True, "x-prepare-id": id_}
    asked = {"properties": {"headers": headers}, "routing_key": "half", "payload": "x"}
    asked["payload_encoding"] = "string"
    assert visitor.api.post("/exchanges/%2F/amq.default/publish", json=asked).status_code == 200


def test_half_messages_are_decided(visitor, live_site):
    visitor.declare("half")
    for id_ in ("kept", "dropped", HOSTILE):
        prepare(visitor, id_)
    text = visitor.text("/once")
    assert text.count(">Commit</button>") == 3
    assert "<script>alert" not in text
    live_site.add_user("reader", "management")
    live_site.permit("reader", "/", "^$", "^$", ".*")
    with Visitor(live_site, "reader") as reader:
        text = reader.text("/once")
        assert "kept" in text
        assert ">Commit</button>" not in text
        assert ">Forget</button>" not in text
        answer = reader.submit("/once/prepared/commit", vhost="/", id="kept")
        assert answer.status_code == 403
    said = visitor.done("/once/prepared/commit", vhost="/", id="kept")
    assert said == ["Message kept was committed."]
    said = visitor.done("/once/prepared/rollback", vhost="/", id="dropped")
    assert said == ["Message dropped was rolled back."]
    assert visitor.submit("/once/prepared/commit", vhost="/", id="kept").status_code == 404
    assert visitor.submit("/once/prepared/guess", vhost="/", id="kept").status_code == 404
    assert visitor.api.get("/queues/%2F/half").json()["messages"] == 1


def test_keys_are_made_changed_and_left(visitor):
    assert "Encrypt new messages in / from now on?" in visitor.text("/encryption")
    said = visitor.done("/encryption/enable", vhost="/")
    assert said == ["New messages in / are encrypted from now on."]
    before = visitor.text("/encryption")
    assert "Rotate key" in before
    said = visitor.done("/encryption/rotate", vhost="/")
    assert said == ["New messages in / are encrypted with a new data key from now on."]
    assert visitor.text("/encryption") != before
    said = visitor.done("/encryption/disable", vhost="/")
    assert said == [
        "New messages in / are stored unencrypted from now on; older ones keep their keys."
    ]
    assert "is not encrypted" in visitor.done("/encryption/rotate", vhost="/")[0]
    assert visitor.submit("/encryption/rotate_master", vhost="/").status_code == 404


WRITES = (
    ("/once/forget", {"vhost": "/", "kind": "queue", "name": "q", "id": "1"}),
    ("/once/producers/forget", {"vhost": "/", "id": "1"}),
    ("/once/prepared/commit", {"vhost": "/", "id": "1"}),
    ("/encryption/enable", {"vhost": "/"}),
    ("/encryption/rotate", {"vhost": "/"}),
)


@pytest.mark.parametrize(("path", "fields"), WRITES)
def test_forms_without_the_token_are_refused(visitor, path, fields):
    assert visitor.submit(path, **{**fields, "csrf_token": "wrong"}).status_code == 403


@pytest.mark.parametrize(("path", "fields"), WRITES)
async def test_strangers_are_refused(browser, path, fields):
    assert (await browser.submit(path, **fields)).status_code == 401


@pytest.mark.parametrize(("path", "fields"), [each for each in WRITES if "prepared" not in each[0]])
async def test_who_may_not_is_refused(site, path, fields):
    site.add_user("reader", "management")
    site.stage.access.put_permission(PermissionDefinition("/", "reader", "^$", ".*", ".*"))
    browser = Browser(site)
    await browser.sign_in("reader")
    assert (await browser.submit(path, **fields)).status_code == 403
    assert "/encryption" not in await browser.text("/once")
    assert (await browser.get("/encryption")).status_code == 403
    assert (await browser.get("/once?vhost=nowhere")).status_code == 404
