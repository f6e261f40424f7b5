"""Pulling by HTTP, asked in-process."""

import asyncio
import base64

import pytest
from pamqp import commands

from leveret.core.access.permissions import InternalRights
from leveret.mgmt_ui.api import pull
from tests.mgmt_ui.test_web import Site
from tests.support.client import Client
from tests.support.waiting import LIMIT_SECONDS, eventually

URL = "/api/leveret/queues/%2F/q/"


class PullSite(Site):
    """A site with a client; `app` is an application's user."""

    def __init__(self, **settings):
        super().__init__(**settings)
        self.add_user("app")
        self.permit("app", "/")
        self.client = Client(self.stage).open()

    async def post(self, path, body=None, user="app", *, content=None):
        path = path if path.startswith("/") else URL + path
        return await self.get(path, user, method="POST", json=body, content=content)

    async def ask_meanwhile(self, asking, waits, meanwhile):
        """Return the answer to what is asked; `meanwhile` is called once somebody waits."""
        task = asyncio.get_running_loop().create_task(asking)
        if meanwhile is not None:
            await eventually(waits, "somebody who waits")
            meanwhile()
        return await task

    async def refusal(self, path, body=None, user="app", **options):
        response = await self.post(path, body, user, **options)
        assert response.json().keys() == {"error", "reason"}
        return response.status_code, response.json()["error"], response.json()["reason"]

    async def receive(self, **asked):
        response = await self.post("receive", asked)
        assert response.status_code == 200, response.text
        return response.json()["messages"]

    async def results(self, verb, *handles, **asked):
        response = await self.post(verb, {"receipt_handles": handles, **asked})
        assert response.status_code == 200, response.text
        results = response.json()["results"]
        assert [result["receipt_handle"] for result in results] == list(handles)
        return [result["result"] for result in results]


async def somebody_waits(site):
    """Until a receive takes part in the turns of the queue."""
    await eventually(lambda: site.stage.queue("q").consumer_count, "a waiting receive")


@pytest.fixture
def site():
    site = PullSite()
    site.client.declare("q")
    return site


async def test_a_message_as_it_is_shown(site):
    site.client.publish(
        "q", b"text", headers={"a": 1, "b": ["x"]}, content_type="text/plain", message_id="m"
    )
    (message,) = await site.receive()
    assert len(message.pop("receipt_handle")) == 32
    assert message == {
        "payload": "text",
        "payload_encoding": "string",
        "payload_bytes": 4,
        "redelivered": False,
        "exchange": "",
        "routing_key": "q",
        "properties": {
            "headers": {"a": 1, "b": ["x"]},
            "content_type": "text/plain",
            "message_id": "m",
        },
    }


async def test_bytes_are_shown_in_base64(site):
    site.client.publish("q", b"\xff", b"text")
    binary, text = await site.receive(count=2, encoding="base64")
    assert (binary["payload"], binary["payload_encoding"]) == ("/w==", "base64")
    assert base64.b64decode(text["payload"]) == b"text"


@pytest.mark.covers("C-210")
async def test_what_was_received_is_settled_by_its_handle(site):
    site.client.publish("q", b"1", b"2", b"3")
    handles = [message["receipt_handle"] for message in await site.receive(count=10)]
    assert len(handles) == 3
    queue = site.stage.queue("q")
    assert await site.results("ack", handles[0], "nonsense") == ["ok", "invalid"]
    assert await site.results("extend", handles[1], visibility_timeout_ms=60_000) == ["ok"]
    assert await site.results("nack", handles[2]) == ["ok"]
    assert (queue.leased_count, queue.message_count) == (1, 1)
    assert await site.results("ack", *handles) == ["stale", "ok", "stale"]
    (again,) = await site.receive()
    assert (again["payload"], again["redelivered"]) == ("3", True)
    assert await site.results("nack", again["receipt_handle"], requeue=False) == ["ok"]
    assert (queue.leased_count, queue.message_count) == (0, 0)


@pytest.mark.covers("C-210")
async def test_a_delay_before_it_comes_back(site):
    site.client.publish("q", b"1")
    (message,) = await site.receive()
    assert await site.results("nack", message["receipt_handle"], delay_ms=100) == ["ok"]
    assert await site.receive() == []
    site.stage.advance(0.1)
    assert len(await site.receive()) == 1


async def test_nothing_there(site):
    assert await site.receive(count=5) == []


async def test_a_long_poll_is_answered_when_something_comes(site):
    asking = asyncio.get_running_loop().create_task(site.receive(wait_ms=20_000))
    await somebody_waits(site)
    site.client.publish("q", b"1")
    assert [message["payload"] for message in await asking] == ["1"]
    assert site.stage.queue("q").consumer_count == 0


async def test_who_pulls_too_fast_is_told_when_to_come_back(site):
    site.client.declare("slow", arguments={"x-consume-rate": 1, "x-consume-burst": 2})
    site.client.publish("slow", b"1", b"2", b"3", b"4")
    url = URL.replace("/q/", "/slow/") + "receive"
    assert len((await site.post(url, {"count": 3})).json()["messages"]) == 3
    response = await site.post(url, {})
    assert response.status_code == 429
    assert response.headers["retry-after"] == "2"
    site.stage.advance(2)
    assert len((await site.post(url, {})).json()["messages"]) == 1


async def test_a_long_poll_ends(site):
    asking = asyncio.get_running_loop().create_task(site.receive(wait_ms=20_000))
    await somebody_waits(site)
    site.stage.advance(20)
    assert await asking == []


class Caller:
    """An ASGI client that hangs up when told."""

    def __init__(self, site, user="app"):
        self.site = site
        authorization = base64.b64encode(f"{user}:{user}".encode())
        self.scope = {
            "type": "http",
            "method": "POST",
            "path": URL + "receive",
            "raw_path": (URL + "receive").encode(),
            "query_string": b"",
            "headers": [(b"authorization", b"Basic " + authorization)],
            "client": ("127.0.0.1", 1),
            "server": ("node", 80),
            "scheme": "http",
            "http_version": "1.1",
            "asgi": {"version": "3.0"},
        }
        self.events = asyncio.Queue()
        body = b'{"wait_ms": 20000}'
        self.events.put_nowait({"type": "http.request", "body": body, "more_body": False})

    async def send(self, _message):
        pass

    def start(self):
        return asyncio.get_running_loop().create_task(
            self.site.app(self.scope, self.events.get, self.send)
        )

    def hang_up(self):
        self.events.put_nowait({"type": "http.disconnect"})


async def test_a_client_that_goes_away_leaves_nothing_behind(site):
    caller, queue = Caller(site), site.stage.queue("q")
    asking = caller.start()
    await somebody_waits(site)
    caller.hang_up()
    await asyncio.wait_for(asking, LIMIT_SECONDS)
    assert queue.consumer_count == 0
    site.client.publish("q", b"1")
    assert (queue.message_count, queue.leased_count) == (1, 0)


async def test_a_node_that_stops_cancels_it(site):
    caller, queue = Caller(site), site.stage.queue("q")
    asking = caller.start()
    await somebody_waits(site)
    asking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asking
    assert queue.consumer_count == 0
    assert not site.broker.pulls.under_way


async def test_others_get_through_while_many_wait(site, monkeypatch):
    monkeypatch.setattr(pull, "WAITING_MAX", 1)
    caller = Caller(site)
    asking = caller.start()
    await somebody_waits(site)
    response = await site.post("receive", {})
    assert (response.status_code, response.headers["retry-after"]) == (429, "1")
    caller.hang_up()
    await asking


async def test_a_queue_that_is_deleted_meanwhile(site):
    asking = asyncio.get_running_loop().create_task(site.refusal("receive", {"wait_ms": 20_000}))
    queue = site.stage.queue("q")
    await somebody_waits(site)
    site.broker.delete_queue(site.broker.vhosts["/"], queue)
    assert await asking == (404, "not_found", "queue_not_found")


async def test_the_firehose_sees_it(site):
    site.client.declare("trace")
    site.client.send(
        commands.Queue.Bind(queue="trace", exchange="amq.rabbitmq.trace", routing_key="deliver.#")
    )
    site.broker.trace("/", on=True)
    site.client.publish("q", b"1")
    await site.receive()
    site.stage.run()
    assert site.stage.queue("trace").message_count == 1


async def test_it_counts_for_the_user_and_for_the_queue(site):
    site.client.publish("q", b"1", b"2")
    await site.receive(count=2)
    used = site.broker.usage.take()
    drawn = {account: usage for account, usage in used.items() if usage.messages_out}
    assert {(account.subject.value, account.name) for account in drawn} == {
        ("vhost", "/"),
        ("user", "app"),
    }
    assert {usage.messages_out for usage in drawn.values()} == {2}
    assert site.stage.queue("q").total_usage().messages_out == 2
    (size,) = {usage.bytes_out for usage in drawn.values()}
    assert size == site.stage.queue("q").total_usage().bytes_out


# -- who may


async def test_who_may_not(site):
    assert await site.refusal("receive", user=None) == (401, "not_authorized", "Not_Authorized")
    site.stage.add_user("writer", read="^$")
    assert await site.refusal("receive", user="writer") == (
        401,
        "not_authorised",
        "read access to queue 'q' in vhost '/' refused for user 'writer'",
    )
    for verb in ("ack", "nack", "extend"):
        asked = {"receipt_handles": ["x"]}
        if verb == "extend":
            asked["visibility_timeout_ms"] = 1
        status, _, _ = await site.refusal(verb, asked, user="writer")
        assert status == 401


async def test_who_may_not_enter_the_virtual_host_pulls_nothing(site, monkeypatch):
    """An authorisation server decides that by itself, whatever it says of the queue."""
    monkeypatch.setattr(InternalRights, "may_enter", lambda _, vhost: vhost != "/")
    assert await site.refusal("receive", {"wait_ms": 0}) == (
        401,
        "not_authorised",
        "access to vhost '/' refused for user 'app'",
    )


async def test_what_is_not_there(site):
    path = "/api/leveret/queues/{}/receive"
    assert await site.refusal(path.format("%2F/none")) == (404, "not_found", "queue_not_found")
    assert await site.refusal(path.format("none/q"), user="guest") == (
        404,
        "not_found",
        "vhost_not_found",
    )


async def test_a_stream_is_not_pulled_from(site):
    site.client.declare("s", durable=True, arguments={"x-queue-type": "stream"})
    status, error, _ = await site.refusal("/api/leveret/queues/%2F/s/receive")
    assert (status, error) == (400, "bad_request")


@pytest.mark.parametrize(
    ("verb", "asked", "told"),
    [
        ("receive", {"count": 0}, "count is a whole number from 1 to 1000"),
        ("receive", {"count": "1"}, "count is a whole number from 1 to 1000"),
        ("receive", {"wait_ms": 20_001}, "wait_ms is a whole number from 0 to 20000"),
        ("receive", {"encoding": "hex"}, "encoding is auto or base64"),
        ("receive", [], "a request is a JSON object"),
        ("ack", {}, "receipt_handles is missing"),
        ("ack", {"receipt_handles": []}, "receipt_handles is a list of 1 to 1000"),
        ("ack", {"receipt_handles": ["x"] * 1001}, "receipt_handles is a list of 1 to 1000"),
        ("ack", {"receipt_handles": [1]}, "a receipt handle is a string"),
        ("nack", {"receipt_handles": ["x"], "requeue": 1}, "requeue is true or false"),
        (
            "nack",
            {"receipt_handles": ["x"], "requeue": False, "delay_ms": 1},
            "delay_ms is for messages that are requeued",
        ),
        (
            "extend",
            {"receipt_handles": ["x"], "visibility_timeout_ms": -1},
            "visibility_timeout_ms is a whole number from 0 to 43200000",
        ),
    ],
)
async def test_what_cannot_be_asked_for(site, verb, asked, told):
    assert await site.refusal(verb, asked) == (400, "bad_request", told)


@pytest.mark.parametrize("content", [b"{", b"[" * 100_000, b"\xff", b" " * 200_000])
async def test_what_is_no_request(site, content):
    status, error, _ = await site.refusal("receive", content=content)
    assert (status, error) == (400, "bad_request")
