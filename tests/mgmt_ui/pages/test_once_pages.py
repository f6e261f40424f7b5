"""Windows, numbering publishers, half messages, and the keys of virtual hosts."""

import pytest

from leveret.ports.definitions import PermissionDefinition
from leveret.storage.master_key import generate_master_key_file
from tests.mgmt_ui.pages.running import running_node
from tests.support.browser import Browser
from tests.support.visitor import Visitor

HOSTILE = "<script>alert(1)</script>"


@pytest.fixture(scope="module")
def address(tmp_path_factory):
    directory = tmp_path_factory.mktemp("node")
    generate_master_key_file(directory / "master.key")
    with running_node(directory, encryption_key_file=directory / "master.key") as address:
        yield address


@pytest.fixture
def guest(address):
    with Visitor(address) as visitor:
        yield visitor


def test_windows_forget_what_they_have_seen(guest):
    guest.declare("once", **{"x-dedup-window": 60_000})
    for _ in range(3):
        guest.publish("once", "x", message_id="m1")
    text = guest.text("/once")
    assert '<a href="/queues/%2F/once">once</a>' in text
    assert '<td class="number">2</td>' in text  # duplicates
    window = {"vhost": "/", "kind": "queue", "name": "once"}
    said = guest.done("/once/forget", **window, id="m1")
    assert said == ["Id m1 was removed from the window of queue once."]
    assert "no message 'm1'" in guest.done("/once/forget", **window, id="m1")[0]
    assert guest.submit("/once/forget", **{**window, "kind": "x"}, id="m1").status_code == 400


def test_publishers_that_number(guest):
    guest.declare("numbered")
    headers = {"x-producer-id": "till 1", "x-producer-epoch": 0, "x-producer-seq": 0}
    guest.publish("numbered", "x", headers=headers)
    assert "till 1" in guest.text("/once?vhost=%2F")
    said = guest.done("/once/producers/forget", vhost="/", id="till 1")
    assert said == [
        "Producer till 1 was deleted. It may start again with any epoch and sequence number 0."
    ]
    assert "till 1" not in guest.client.get("/once").text


def prepare(guest, id_):
    headers = {"x-prepare": True, "x-prepare-id": id_}
    asked = {"properties": {"headers": headers}, "routing_key": "half", "payload": "x"}
    asked["payload_encoding"] = "string"
    assert guest.api.post("/exchanges/%2F/amq.default/publish", json=asked).status_code == 200


def test_half_messages_are_decided(guest, address):
    guest.declare("half")
    for id_ in ("kept", "dropped", HOSTILE):
        prepare(guest, id_)
    text = guest.text("/once")
    assert text.count(">Commit</button>") == 3
    assert "<script>alert" not in text
    guest.done("/users", name="reader", password="reader", tags="management")
    patterns = {"configure": "^$", "write": "^$", "read": ".*"}
    guest.done("/users/reader/permissions", vhost="/", **patterns)
    with Visitor(address, "reader") as reader:
        text = reader.text("/once")
        assert "kept" in text
        assert ">Commit</button>" not in text
        assert ">Forget</button>" not in text
        answer = reader.submit("/once/prepared/commit", vhost="/", id="kept")
        assert answer.status_code == 403
    said = guest.done("/once/prepared/commit", vhost="/", id="kept")
    assert said == ["Message kept was committed."]
    said = guest.done("/once/prepared/rollback", vhost="/", id="dropped")
    assert said == ["Message dropped was rolled back."]
    assert guest.submit("/once/prepared/commit", vhost="/", id="kept").status_code == 404
    assert guest.submit("/once/prepared/guess", vhost="/", id="kept").status_code == 404
    assert guest.api.get("/queues/%2F/half").json()["messages"] == 1


def test_keys_are_made_changed_and_left(guest):
    assert "Encrypt new messages in / from now on?" in guest.text("/encryption")
    said = guest.done("/encryption/enable", vhost="/")
    assert said == ["New messages in / are encrypted from now on."]
    before = guest.text("/encryption")
    assert "Rotate key" in before
    said = guest.done("/encryption/rotate", vhost="/")
    assert said == ["New messages in / are encrypted with a new data key from now on."]
    assert guest.text("/encryption") != before
    said = guest.done("/encryption/disable", vhost="/")
    assert said == [
        "New messages in / are stored unencrypted from now on; older ones keep their keys."
    ]
    assert "is not encrypted" in guest.done("/encryption/rotate", vhost="/")[0]
    assert guest.submit("/encryption/rotate_master", vhost="/").status_code == 404


WRITES = (
    ("/once/forget", {"vhost": "/", "kind": "queue", "name": "q", "id": "1"}),
    ("/once/producers/forget", {"vhost": "/", "id": "1"}),
    ("/once/prepared/commit", {"vhost": "/", "id": "1"}),
    ("/encryption/enable", {"vhost": "/"}),
    ("/encryption/rotate", {"vhost": "/"}),
)


@pytest.mark.parametrize(("path", "fields"), WRITES)
def test_forms_without_the_token_are_refused(guest, path, fields):
    assert guest.submit(path, **{**fields, "csrf_token": "wrong"}).status_code == 403


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
