"""Operations on single messages, and their routes."""

import base64
import json

import pytest

from leveret.errors import DiskFullError
from leveret.features.browse import commands as messages
from leveret.ports.contents import headers_table
from leveret.ports.definitions import PermissionDefinition, TopicPermissionDefinition
from leveret.ports.records import RecordFlag
from leveret.ports.tables import decode_table
from tests.mgmt_ui.test_web import Site
from tests.support.queue_bench import content_header

URL = "/api/leveret/queues/%2F/q/messages"


class Desk(Site):
    """A site with a queue."""

    def __init__(self):
        super().__init__()
        self.vhost = self.broker.vhosts["/"]
        self.declare("q")
        self.queue = self.stage.queue("q")

    def declare(self, name, **arguments):
        self.vhost.declare_queue(
            name,
            durable=True,
            exclusive=False,
            auto_delete=False,
            arguments={f"x-{key.replace('_', '-')}": value for key, value in arguments.items()},
            owner=None,
        )
        return self.stage.queue(name)

    def publish(self, *bodies, queue="q", key="key", **properties):
        queue = self.stage.queue(queue)
        for body in bodies:
            flags, header = content_header(len(body), **properties)
            flags |= RecordFlag.HAS_HEADERS if "headers" in properties else 0
            queue.builder.add(flags, self.stage.now, b"x", key.encode(), header, body)
            self.stage.turn.touch(queue)
            self.stage.run()

    async def ask(self, method, path, body=None, user="guest"):
        url = path if path.startswith("/") else URL + ("/" + path if path else "")
        return await self.get(url, user, method=method, content=json.dumps(body or {}))

    async def answer(self, method, path, body=None):
        response = await self.ask(method, path, body)
        assert response.status_code in {200, 204}, response.text
        return response.json() if response.content else None

    async def browse(self, query=""):
        response = await self.ask("GET", URL + query)
        assert response.status_code == 200, response.text
        return response.json()

    async def reason(self, method, path, body=None, user="guest"):
        response = await self.ask(method, path, body, user)
        assert response.status_code >= 400, response.text
        return response.status_code, response.json()["reason"]

    def bodies(self, name):
        queue, found = self.stage.queue(name), []
        while (got := queue.get()) is not None:
            found.append(queue.batch_at_hand(got[0]).record(got[0])[-1])
            queue.settle([(got[0], got[0] + 1)])
        return found


@pytest.fixture
def desk():
    return Desk()


async def offsets(desk, query=""):
    return [row["offset"] for row in (await desk.browse(query))["messages"]]


async def test_a_message_is_shown_whole(desk):
    desk.publish(b"hello", message_id="a", headers={"n": 1})
    page = await desk.browse()
    (row,) = page["messages"]
    assert row == {
        "offset": 0,
        "state": "ready",
        "time_ms": desk.stage.now,
        "exchange": "x",
        "routing_key": "key",
        "properties": {"message_id": "a", "headers": {"n": 1}},
        "payload_bytes": 5,
        "truncated": False,
        "payload": "hello",
        "payload_encoding": "string",
    }
    assert (page["scanned"], page["after"]) == (1, None)
    assert await desk.answer("GET", "0") == row


async def test_payloads_are_cut_and_bytes_are_base64(desk):
    desk.publish("zwölf".encode(), b"\xff\x00")
    rows = (await desk.browse("?truncate=3"))["messages"]
    assert rows[0]["payload"] == "zw"  # half of a letter is none
    assert (rows[0]["truncated"], rows[0]["payload_bytes"]) == (True, 6)
    assert (rows[1]["payload"], rows[1]["payload_encoding"]) == ("/wA=", "base64")
    rows = (await desk.browse("?encoding=base64"))["messages"]
    assert base64.b64decode(rows[0]["payload"]).decode() == "zwölf"


@pytest.mark.covers("C-214")
async def test_a_body_is_downloaded_as_nothing_but_bytes(desk):
    desk.publish(b"<script>", content_type="text/html")
    response = await desk.ask("GET", "0/body")
    assert response.content == b"<script>"
    assert response.headers["content-type"] == "application/octet-stream"
    assert response.headers["x-content-type-options"] == "nosniff"
    assert response.headers["content-disposition"].startswith("attachment")
    assert await desk.reason("GET", "1/body") == (404, "message_not_found")
    assert await desk.reason("GET", "1") == (404, "no message 1 in queue 'q'")


async def test_pages_follow_each_other_in_both_directions(desk):
    desk.publish(*(b"%d" % number for number in range(5)))
    page = await desk.browse("?limit=2")
    assert [row["offset"] for row in page["messages"]] == [0, 1]
    assert page["after"] == 1
    assert await offsets(desk, "?limit=2&after=1") == [2, 3]
    page = await desk.browse("?limit=2&order=backwards")
    assert [row["offset"] for row in page["messages"]] == [4, 3]
    assert await offsets(desk, f"?order=backwards&after={page['after']}") == [2, 1, 0]
    assert await offsets(desk, "?from=3") == [3, 4]
    assert await offsets(desk, "?from=3&order=backwards&limit=2") == [3, 2]


async def test_a_page_holds_so_many_bytes_and_at_least_one_message(desk, monkeypatch):
    monkeypatch.setattr(messages, "ANSWER_BYTES_MAX", 4)
    desk.publish(b"large one", b"1", b"2")
    page = await desk.browse("?truncate=8")
    assert [row["offset"] for row in page["messages"]] == [0]
    assert page["after"] == 0
    assert await offsets(desk, "?after=0") == [1, 2]


@pytest.mark.covers("C-214")
async def test_what_is_asked_for_by_what_it_has(desk):
    desk.publish(b"a", headers={"shop": 1, "x-tags": "red"}, message_id="m1")
    desk.stage.now += 1000
    desk.publish(b"b", headers={"shop": 2}, key="other", message_id="m2")
    desk.queue.get()
    assert await offsets(desk, "?header=shop=2") == [1]
    assert await offsets(desk, "?tags=red") == [0]
    assert await offsets(desk, "?sql=shop%20%3E%201") == [1]
    assert await offsets(desk, "?message_id=m1&message_id=m2") == [0, 1]
    assert await offsets(desk, "?offset=1") == [1]
    assert await offsets(desk, "?routing_key=other&exchange=x") == [1]
    assert await offsets(desk, "?text=b") == [1]
    assert await offsets(desk, "?state=unacked") == [0]
    assert await offsets(desk, f"?since={desk.stage.now}") == [1]
    assert await offsets(desk, f"?until={desk.stage.now}") == [0]


@pytest.mark.parametrize(
    "query",
    [
        "?limit=-1",
        "?from=x",
        "?order=up",
        "?encoding=hex",
        "?state=gone",
        "?header=shop",
        "?sql=%3C%3C",
        "?tags=%26",
        "?unknown=1",
        "?since=yesterday",
    ],
)
async def test_questions_that_make_no_sense_are_refused(desk, query):
    status, _ = await desk.reason("GET", URL + query)
    assert status == 400


@pytest.mark.covers("C-214")
async def test_chosen_messages_are_deleted_but_for_those_that_somebody_has(desk):
    desk.publish(*(b"%d" % number for number in range(5)))
    desk.queue.get()
    told = await desk.answer("POST", "delete", {"select": {"offsets": [0, 2, 4, 9]}})
    assert told == {"deleted": 2, "skipped": 1, "scanned": 3, "after": None}
    assert await offsets(desk) == [0, 1, 3]
    assert await desk.answer("DELETE", "3") is None
    assert await desk.reason("DELETE", "3") == (404, "message_not_found")
    assert await desk.reason("DELETE", "0") == (400, "a consumer has the message")
    status, reason = await desk.reason("POST", "delete", {"select": {}})
    assert (status, reason) == (400, "state which messages; a purge deletes all")
    assert (desk.queue.message_count, desk.queue.leased_count) == (1, 1)


async def test_settled_messages_that_are_kept_are_found_and_deleted(desk):
    queue = desk.declare("kept", retention="1d")
    desk.publish(*(b"%d" % number for number in range(4)), queue="kept")
    assert desk.bodies("kept") == [b"0", b"1", b"2", b"3"]
    url = "/api/leveret/queues/%2F/kept/messages"

    async def settled():
        rows = (await desk.answer("GET", url + "?state=settled"))["messages"]
        assert {row["state"] for row in rows} <= {"settled"}
        return [row["offset"] for row in rows]

    assert (await desk.answer("GET", url))["messages"] == []
    assert await settled() == [0, 1, 2, 3]
    assert (await desk.answer("GET", url + "/2"))["state"] == "settled"
    await desk.answer("DELETE", url + "/2")
    assert (await desk.reason("GET", url + "/2"))[0] == 404
    assert (await desk.reason("GET", url + "/2/trace"))[0] == 404
    chosen = {"select": {"state": "settled", "text": "0"}}
    assert (await desk.answer("POST", url + "/delete", chosen))["deleted"] == 1
    assert await settled() == [1, 3]
    assert list(queue.log.erased) == [(0, 1), (2, 3)]
    moved = {"select": {"state": "settled"}, "to_queue": "q"}
    assert (await desk.answer("POST", url + "/move", moved))["skipped"] == 2


async def test_a_queue_without_a_retention_has_no_settled_messages(desk):
    desk.publish(b"0", b"1")
    assert desk.bodies("q") == [b"0", b"1"]
    assert (await desk.browse("?state=settled"))["messages"] == []
    assert (await desk.reason("GET", "0"))[0] == 404


async def test_a_long_deletion_goes_on_where_it_ended(desk):
    desk.publish(*(b"x%d" % number for number in range(7)))
    asked, deleted = {"select": {"text": "x"}, "limit": 3}, []
    while True:
        told = await desk.answer("POST", "delete", asked)
        deleted.append(told["deleted"])
        if told["after"] is None:
            break
        asked["after"] = told["after"]
    assert deleted == [3, 3, 1]


@pytest.mark.covers("C-214")
async def test_messages_move_to_a_queue(desk):
    desk.declare("other")
    desk.publish(*(b"%d" % number for number in range(4)), headers={"n": 1})
    desk.queue.get()
    told = await desk.answer("POST", "move", {"select": {}, "to_queue": "other"})
    assert told == {
        "moved": 3,
        "skipped": 1,
        "unroutable": 0,
        "refused": 0,
        "scanned": 4,
        "after": None,
    }
    assert (desk.queue.message_count, desk.queue.leased_count) == (0, 1)
    assert desk.bodies("other") == [b"1", b"2", b"3"]


@pytest.mark.covers("C-214")
async def test_messages_are_copied_to_where_an_exchange_sends_them(desk):
    desk.vhost.declare_exchange(
        "fan", "fanout", durable=True, auto_delete=False, internal=False, arguments={}
    )
    for name in ("a", "b"):
        desk.declare(name)
        desk.vhost.bind_queue(name, "fan", "", {}, None)
    stream = desk.declare("s", queue_type="stream")
    desk.publish(b"1", b"2", queue="s")
    path = "/api/leveret/queues/%2F/s/messages"
    told = await desk.answer("POST", f"{path}/copy", {"exchange": "fan", "routing_key": "k"})
    assert (told["copied"], stream.message_count) == (2, 2)
    assert desk.bodies("a") == desk.bodies("b") == [b"1", b"2"]
    status, reason = await desk.reason("POST", f"{path}/move", {"exchange": "fan"})
    assert status == 400
    assert reason == "queue 's' is a stream: its messages stay where they are"


async def test_what_cannot_go_stays(desk):
    desk.declare("full", max_length=1, overflow="reject-publish")
    desk.publish(b"full", queue="full")
    desk.publish(b"1", b"2")
    status, reason = await desk.reason("POST", "move", {"to_queue": "full"})
    assert (status, reason) == (400, "the destination is full, or was deleted")
    told = await desk.answer("POST", "move", {"exchange": "amq.direct", "routing_key": "nobody"})
    assert (told["moved"], told["unroutable"]) == (0, 2)
    assert (desk.queue.message_count, desk.queue.leased_count) == (2, 0)
    assert desk.bodies("q") == [b"1", b"2"]


@pytest.mark.parametrize("what", ["move", "copy"])
@pytest.mark.parametrize("error", [DiskFullError("no space left"), OSError("no space left")])
async def test_a_disk_that_refuses_is_no_mistake_of_who_asks(desk, what, error):
    desk.declare("other")
    desk.publish(b"1", b"2")
    desk.stage.log("other").append_error = error
    assert await desk.reason("POST", what, {"to_queue": "other"}) == (503, "no space left")
    assert (desk.queue.message_count, desk.queue.leased_count) == (2, 0)
    desk.stage.log("other").append_error = None
    await desk.answer("POST", what, {"to_queue": "other"})
    assert desk.bodies("other") == [b"1", b"2"]


async def test_a_disk_that_refuses_an_edit_says_so(desk):
    desk.publish(b"old")
    desk.stage.log("q").append_error = DiskFullError("no space left")
    assert await desk.reason("PATCH", "0", {"payload": "new"}) == (503, "no space left")
    assert desk.queue.message_count == 1


@pytest.mark.parametrize(
    "where",
    [
        {},
        {"to_queue": "other", "exchange": "amq.direct"},
        {"to_queue": "missing"},
        {"to_queue": "q"},
        {"to_queue": "other", "routing_key": "k"},
        {"exchange": "missing"},
    ],
)
async def test_a_destination_must_be_one(desk, where):
    desk.declare("other")
    status, _ = await desk.reason("POST", "move", where)
    assert status in {400, 404}


@pytest.mark.covers("C-206", "C-214")
async def test_a_message_is_edited(desk):
    desk.publish(
        b"old", b"next", headers={"keep": 1, "drop": 2}, message_id="m", content_type="text/plain"
    )
    changes = {
        "payload": "new one",
        "routing_key": "elsewhere",
        "headers": {"drop": None, "add": [1, "two"]},
        "properties": {"message_id": None, "priority": 3, "expiration": "60000", "type": "t"},
    }
    assert await desk.answer("PATCH", "0", changes) == {"edited": 1}
    old, new = (await desk.browse())["messages"]
    assert (old["payload"], new["payload"], new["payload_bytes"]) == ("next", "new one", 7)
    assert (new["exchange"], new["routing_key"]) == ("x", "elsewhere")
    assert new["properties"] == {
        "content_type": "text/plain",
        "headers": {"keep": 1, "add": [1, "two"]},
        "priority": 3,
        "expiration": "60000",
        "type": "t",
    }
    flags, _, _, _, header, _ = desk.queue.batch_at_hand(new["offset"]).record(new["offset"])
    assert flags & RecordFlag.HAS_EXPIRATION
    assert flags & RecordFlag.HAS_PRIORITY
    assert decode_table(headers_table(header)) == {"keep": 1, "add": [1, "two"]}
    desk.stage.advance(61)
    assert await offsets(desk) == [1]  # the copy lived for as long as it says now


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"body": "x"},
        {"payload": 5},
        {"payload": "!", "payload_encoding": "base64"},
        {"routing_key": "k" * 256},
        {"headers": {"k" * 256: 1}},
        {"headers": {"x-retry-delays": "soon"}},
        {"properties": {"user_id": "somebody"}},
        {"properties": {"unknown": 1}},
        {"properties": {"priority": 256}},
        {"properties": {"expiration": "soon"}},
        {"properties": {"type": "\ud800"}},
    ],
)
async def test_an_edit_that_makes_no_message_changes_nothing(desk, changes):
    desk.publish(b"old")
    status, _ = await desk.reason("PATCH", "0", changes)
    assert status == 400
    assert await offsets(desk) == [0]
    assert desk.bodies("q") == [b"old"]


async def test_what_a_consumer_has_is_not_edited(desk):
    desk.publish(b"old")
    desk.queue.get()
    assert await desk.reason("PATCH", "0", {"payload": "x"}) == (
        400,
        "message 0 is with a consumer",
    )


async def test_permissions_are_those_of_a_client(desk):
    desk.declare("other")
    desk.publish(b"1")
    desk.add_user("reader", "management")
    allowed = PermissionDefinition("/", "reader", "", "", "q")
    desk.stage.access.put_permission(allowed)
    assert (await desk.ask("GET", "", user="reader")).status_code == 200
    for method, path, body in (
        ("POST", "move", {"to_queue": "other"}),
        ("POST", "copy", {"exchange": "amq.direct"}),
        ("PATCH", "0", {"payload": "x"}),
        ("GET", "/api/leveret/queues/%2F/other/messages", None),
    ):
        status, reason = await desk.reason(method, path, body, "reader")
        assert status == 401
        assert "refused for user 'reader'" in reason
    assert (await desk.ask("DELETE", "0", user="reader")).status_code == 204
    desk.add_user("nobody")
    assert (await desk.ask("GET", "", user="nobody")).status_code == 401


async def test_messages_go_to_topics_as_far_as_a_client_may_publish_there(desk):
    desk.publish(b"1", key="secret.key")
    desk.add_user("mover", "management")
    desk.permit("mover", "/")
    topics = TopicPermissionDefinition("/", "mover", "amq.topic", "^open\\.", "^open\\.")
    desk.stage.access.put_topic_permission(topics)
    for verb in ("move", "copy"):
        status, reason = await desk.reason("POST", verb, {"exchange": "amq.topic"}, "mover")
        assert (status, reason) == (400, "state a routing key: this is a topic exchange")
        where = {"exchange": "amq.topic", "routing_key": "secret.key"}
        status, reason = await desk.reason("POST", verb, where, "mover")
        assert (status, "topic 'secret.key'" in reason) == (401, True)
    where = {"exchange": "amq.topic", "routing_key": "open.key"}
    assert (await desk.ask("POST", "move", where, "mover")).status_code == 200
    assert (await desk.ask("POST", "move", {"exchange": "amq.topic"})).status_code == 200


async def test_messages_do_not_go_to_internal_exchanges(desk):
    desk.publish(b"1")
    desk.vhost.declare_exchange(
        "inner", "fanout", durable=True, auto_delete=False, internal=True, arguments={}
    )
    status, reason = await desk.reason("POST", "copy", {"exchange": "inner"})
    assert (status, reason) == (403, "cannot publish to internal exchange 'inner' in vhost '/'")
