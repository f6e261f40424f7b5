"""Places of an HTTP port: who gets one, and who loses it when all are taken."""

import asyncio
import itertools
import json

import pytest

from leveret.mgmt_ui.http_connections import CONNECTION, NOTE_LOGIN, HttpConnection, HttpConnections


class SilentTransport(asyncio.Transport):
    """A connection that is not there; `is_closed` once it was aborted."""

    def __init__(self, host, port):
        super().__init__({"peername": (host, port), "sockname": ("192.0.2.1", 15672)})
        self.is_closed = False

    def abort(self):
        self.is_closed = True

    def is_closing(self):
        return self.is_closed


class Peer:
    """One connection of a client."""

    def __init__(self, port, host, number):
        self._port = port
        self.transport = SilentTransport(host, number)
        self.connection = HttpConnection(port.connections, asyncio.Protocol())
        self.scope = {"client": (host, number), "state": {CONNECTION: self.connection}}
        self.connection.connection_made(self.transport)

    @property
    def is_open(self):
        return not self.transport.is_closed

    async def ask(self, path="/"):
        """Send a request; return (status, headers, JSON or None)."""
        sent = []

        async def send(message):
            sent.append(message)

        await self._port.connections({"path": path, **self.scope}, None, send)
        if not sent:
            return None
        start, body = sent
        headers = {name.decode(): value.decode() for name, value in start.get("headers", ())}
        return start["status"], headers, json.loads(body.get("body", b"null"))

    def hang_up(self):
        self.connection.connection_lost(None)


class Port:
    """A port with few places, whose application knows a login and an answer that takes long."""

    def __init__(self, places):
        self.connections = HttpConnections(self._app, places)
        self.peers = []
        self._numbers = itertools.count(1)
        self.made = asyncio.Event()

    def connect(self, host="198.51.100.1"):
        self.peers.append(Peer(self, host, next(self._numbers)))
        return self.peers[-1]

    def connect_many(self, count, host="198.51.100.1"):
        return [self.connect(host) for _ in range(count)]

    async def _app(self, scope, _, send):
        if scope["path"].startswith("/login"):
            scope[NOTE_LOGIN]()
        if scope["path"].endswith("/slow"):
            await self.made.wait()
        await send({"type": "http.response.start", "status": 200})
        await send({"type": "http.response.body"})


@pytest.fixture
async def port():
    port = Port(4)
    yield port
    for peer in port.peers:
        peer.hang_up()


@pytest.fixture
async def answering():
    """Begin requests, and await them at the end."""
    async with asyncio.TaskGroup() as group:

        async def begin(peer, path):
            task = group.create_task(peer.ask(path))
            await asyncio.sleep(0)
            return task

        yield begin


async def test_silent_connections_give_way_to_newer_ones_of_any_address(port):
    silent = port.connect_many(10)
    assert [peer.is_open for peer in silent] == [False] * 6 + [True] * 4
    for host in ("203.0.113.9", "198.51.100.1"):
        assert (await port.connect(host).ask())[0] == 200
    assert sum(peer.is_open for peer in port.peers) == 4


async def test_the_address_with_the_most_loses_its_oldest(port):
    one = port.connect("203.0.113.9")
    others = port.connect_many(3)
    port.connect("203.0.113.10")
    assert one.is_open
    assert [peer.is_open for peer in others] == [False, True, True]


async def test_a_site_of_ipv6_is_one_address(port):
    one = port.connect("203.0.113.9")
    others = [port.connect(f"2001:db8::{n:x}") for n in range(3)]
    port.connect("203.0.113.10")
    assert one.is_open
    assert [peer.is_open for peer in others] == [False, True, True]


async def test_who_has_logged_in_is_not_counted_and_keeps_its_place(port):
    """As behind a proxy: all have one address."""
    known = port.connect_many(3)
    for peer in known:
        assert (await peer.ask("/login"))[0] == 200
    silent = port.connect_many(50)
    assert all(peer.is_open for peer in known)
    assert [peer.is_open for peer in silent] == [False] * 49 + [True]
    assert (await known[0].ask())[0] == 200


async def test_a_request_without_login_wins_no_place(port):
    asked = port.connect()
    assert (await asked.ask())[0] == 200
    port.connect_many(4)
    assert not asked.is_open
    assert await asked.ask() is None


async def test_what_is_being_answered_is_not_given_up_for_the_same_address(port, answering):
    slow = port.connect_many(4)
    tasks = [await answering(peer, "/slow") for peer in slow]
    refused = port.connect()
    status, headers, body = await refused.ask()
    assert (status, headers["retry-after"], body["error"]) == (503, "1", "service_unavailable")
    assert "too many connections" in body["reason"]
    assert all(peer.is_open for peer in slow)
    port.made.set()
    assert [(await task)[0] for task in tasks] == [200] * 4
    slow[0].hang_up()
    assert (await refused.ask())[0] == 200


async def test_an_address_cannot_keep_all_places_by_slow_answers(port, answering):
    slow = port.connect_many(4)
    tasks = [await answering(peer, "/slow") for peer in slow]
    other = port.connect("203.0.113.9")
    assert [peer.is_open for peer in slow] == [False, True, True, True]
    slow[0].hang_up()  # as the event loop does
    assert await tasks[0] is None
    assert (await other.ask())[0] == 200
    port.made.set()


async def test_answers_for_clients_that_are_gone_are_not_without_number(port, answering):
    for _ in range(4):
        peer = port.connect()
        await answering(peer, "/slow")
        peer.hang_up()
    known = port.connect()
    assert (await known.ask())[0] == 503
    port.made.set()
    await asyncio.sleep(0)
    assert (await known.ask("/login"))[0] == 200


async def test_no_more_are_open_than_places_and_one(port):
    for peer in port.connect_many(4):
        assert (await peer.ask("/login"))[0] == 200
    strangers = [port.connect(f"203.0.113.{n}") for n in range(20)]
    assert [peer.is_open for peer in strangers] == [False] * 19 + [True]
    assert (await strangers[-1].ask())[0] == 503
    assert all(peer.is_open for peer in port.peers[:4])


async def test_a_flood_is_logged_once_a_minute(port, caplog, monkeypatch):
    port.connect_many(50)
    assert sum("has not logged in" in record.message for record in caplog.records) == 1
    monkeypatch.setattr(port.connections, "_quiet_until", 0.0)
    port.connect()
    assert sum("has not logged in" in record.message for record in caplog.records) == 2
