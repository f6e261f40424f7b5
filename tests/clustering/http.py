"""HTTP at the brokers of a cluster in one process, without sockets of its own."""

from __future__ import annotations

import asyncio
import json
from functools import partial

import httpx

from leveret.mgmt_ui.managed import ManagedNode
from leveret.mgmt_ui.operations.context import AdminContext
from leveret.mgmt_ui.web import create_app, create_forwarded_app
from leveret.range_reader import parse_chunk
from leveret.range_reader.chunk import chunk_bytes

AUTH = ("guest", "guest")


def serve_http(node):
    """Give a node its applications: `node.app` answers clients."""
    context = AdminContext(None, node.broker.vhosts, broker=node.broker)
    managed = ManagedNode(
        f"leveret@{node.number}",
        node.broker,
        context,
        node.configuration,
        None,
        (),
        lambda: True,
        None,
        node.http,
    )
    node.app = create_app(managed)
    node.http.serve_by(partial(create_forwarded_app, managed))


async def ask(node, method, path, body=None, *, auth=AUTH, **query):
    """Return the answer of a node."""
    transport = httpx.ASGITransport(node.app, client=("127.0.0.1", 1))
    async with httpx.AsyncClient(transport=transport, base_url="http://node") as client:
        return await client.request(
            method, f"/api/leveret{path}", auth=auth, json=body, params=query, timeout=60
        )


async def told(node, method, path, body=None, **query):
    answer = await ask(node, method, path, body, **query)
    assert answer.status_code == 200, answer.text
    return answer.json()


async def refused(node, method, path, body=None, **options):
    answer = await ask(node, method, path, body, **options)
    assert answer.status_code >= 400, answer.text
    return answer.status_code, answer.json()["error"]


def values(data):
    """Return the bodies of the messages in chunks."""
    found = []
    while data:
        size = chunk_bytes(data[:24])
        chunk = parse_chunk(data[:size])
        found += [chunk.columns["value"][row] for row in range(chunk.rows)]
        data = data[size:]
    return found


class Visit:
    """A request whose client takes the answer piece by piece, and may hang up."""

    def __init__(self, node, method, path, query="", body=None):
        self.status = None
        self.pieces = []
        self.is_whole = False
        self.may_take = asyncio.Event()  # more of the answer
        self.may_take.set()
        self._gone = asyncio.Event()
        self._body = b"" if body is None else json.dumps(body).encode()
        target = f"/api/leveret{path}"
        self._scope = {
            "type": "http",
            "asgi": {"version": "3.0"},
            "http_version": "1.1",
            "method": method,
            "scheme": "http",
            "path": target,
            "raw_path": target.encode(),
            "query_string": query.encode(),
            "root_path": "",
            "headers": [(b"authorization", httpx.BasicAuth(*AUTH)._auth_header.encode())],
            "client": ("127.0.0.1", 1),
            "server": ("127.0.0.1", 1),
        }
        self.task = asyncio.get_running_loop().create_task(
            node.app(self._scope, self._receive, self._send)
        )

    def hang_up(self):
        self._gone.set()

    async def _receive(self):
        if self._body is not None:
            body, self._body = self._body, None
            return {"type": "http.request", "body": body, "more_body": False}
        await self._gone.wait()
        return {"type": "http.disconnect"}

    async def _send(self, message):
        if message["type"] == "http.response.start":
            self.status = message["status"]
            return
        await self.may_take.wait()
        self.pieces.append(bytes(message.get("body", b"")))
        self.is_whole = not message.get("more_body", False)
