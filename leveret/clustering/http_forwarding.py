"""Requests of HTTP clients between the nodes of a cluster: each is a stream of a link.

    asking node                               leader
    request ──────── opens the stream ──────► application ──► routes
    head, pieces ◄── messages, by credit ──── what it sends
    hang_up ──────── ends its side ─────────► the client is gone: finish
    not wanted ───── fails the stream ──────► the work is cancelled

A node asks itself in the same way, without a link, where it leads a part of what is asked for.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from typing import TYPE_CHECKING, Final

from leveret.links.errors import (
    LinkError,
    PeerRefusedError,
    PeerUnavailableError,
    RefusalCode,
    StreamFailedError,
    Unavailable,
)
from leveret.mgmt_ui.forwarded import (
    FORWARDED,
    AnswerHead,
    ForwardedMessageError,
    ForwardedRequest,
    LeaderFailedError,
)
from leveret.mgmt_ui.hosts import RELEASE_BODY
from leveret.ports.link_kinds import FORWARD_HTTP

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Coroutine, Mapping

    from starlette.types import ASGIApp, Message, Scope

    from leveret.links.accepted import StreamHandler
    from leveret.links.links import Links
    from leveret.links.streams import LinkStream
    from leveret.mgmt_ui.forwarded import ForwardedAnswer

__all__ = ["HttpForwarding"]

logger = logging.getLogger(__name__)

BAD_REQUEST: Final = 100  # code of a stream that begins with no request
STARTING: Final = 101  # of a node that serves nobody yet: it may be asked again
# Requests of this node's clients that leaders answer: each has one of the node's HTTP connections
# (256), and those that are answered here must get through.
ASKED_MAX: Final = 192
# Requests of other nodes that are answered here: as many as a node has HTTP connections.
SERVED_MAX: Final = 256
NOT_BEGUN: Final = frozenset({RefusalCode.UNKNOWN_KIND, RefusalCode.BUSY, BAD_REQUEST, STARTING})
# What a client is told where a leader fails for other reasons than those for which 503 is right.
STATUSES: Final[dict[int, int]] = {RefusalCode.BUSY: 429, RefusalCode.INTERNAL: 500}
PIECES_MAX: Final = 8  # of an answer that this node gives itself, on their way


class HttpForwarding:
    """`RequestForwarding` of a node of a cluster.

    `spawn` starts a task in the node's group. `serve_by` says how the application is made: that
    takes a while, and is done in a thread when the first request comes.
    """

    def __init__(
        self,
        node: int,
        links: Links,
        spawn: Callable[[Coroutine[object, object, None]], asyncio.Task[None]],
    ) -> None:
        self._node = node
        self._links = links
        self._spawn = spawn
        self._make: Callable[[], ASGIApp] | None = None
        self._app: ASGIApp | None = None
        self._making = asyncio.Lock()
        self._asked = 0
        self._served = 0

    @property
    def node(self) -> int:
        """Number of this node."""
        return self._node

    @property
    def streams(self) -> Mapping[int, StreamHandler]:
        """Handlers of other nodes' streams, by their kinds."""
        return {FORWARD_HTTP: self.serve}

    def serve_by(self, make: Callable[[], ASGIApp]) -> None:
        """Answer requests from now on by the application that `make` makes."""
        self._make = make

    # -- asking

    @contextlib.asynccontextmanager
    async def ask(self, node: int, request: ForwardedRequest) -> AsyncIterator[ForwardedAnswer]:
        """Ask a node (see RequestForwarding)."""
        if self._asked >= ASKED_MAX:
            text = "too many requests wait for other nodes"
            raise LeaderFailedError(text, has_begun=False, status=429)
        self._asked += 1
        try:
            answer = await self._begun(node, request)
            try:
                yield answer
            finally:
                answer.close()
        finally:
            self._asked -= 1

    async def _begun(self, node: int, request: ForwardedRequest) -> RemoteAnswer | OwnAnswer:
        if node == self._node:
            own = OwnAnswer()
            own.begin(self._spawn(own.run(await self._application(), request)))
            return own
        try:
            return RemoteAnswer(self._links.peer(node).open_stream(FORWARD_HTTP, request.pack()))
        except LinkError as error:
            text = f"node {node}, which leads, cannot be asked: {error}"
            raise LeaderFailedError(text, has_begun=False) from None

    # -- answering

    async def serve(self, stream: LinkStream) -> None:
        """Answer a request of another node. Raises PeerRefusedError."""
        try:
            request = ForwardedRequest.parse(stream.opening)
        except ForwardedMessageError as error:
            raise PeerRefusedError(BAD_REQUEST, str(error)) from None
        if self._make is None:
            raise PeerRefusedError(STARTING, "it is starting")
        if self._served >= SERVED_MAX:
            raise PeerRefusedError(RefusalCode.BUSY, "too many requests are being answered")
        self._served += 1
        try:
            app = await self._application()
            sender = StreamSender(stream)
            await app(_scope(request), _Client(request.body, stream).receive, sender.send)
        finally:
            self._served -= 1

    async def _application(self) -> ASGIApp:
        async with self._making:
            if self._app is None:
                assert self._make is not None, "the node has begun to serve"
                self._app = await asyncio.to_thread(self._make)
        return self._app


class RemoteAnswer:
    """Answer that comes by a stream (see ForwardedAnswer)."""

    def __init__(self, stream: LinkStream) -> None:
        self._stream = stream
        self._is_whole = False

    async def head(self) -> AnswerHead:
        """Wait for the head. Raises LeaderFailedError."""
        payload = await self._next()
        if payload is None:
            raise self._failed("it ended before it began")
        try:
            return AnswerHead.parse(payload)
        except ForwardedMessageError as error:
            raise self._failed(str(error)) from None

    async def pieces(self) -> AsyncIterator[bytes]:
        """Yield the pieces of the body. Raises LeaderFailedError."""
        while (piece := await self._next()) is not None:
            yield bytes(piece)
        self._is_whole = True

    async def _next(self) -> memoryview | None:
        try:
            return await self._stream.receive()
        except StreamFailedError as error:
            raise LeaderFailedError(
                f"node {self._stream.peer.node}: {error.text}",
                has_begun=error.code not in NOT_BEGUN,
                status=STATUSES.get(error.code, 503),
            ) from None
        except PeerUnavailableError as error:
            has_begun = error.why is Unavailable.LOST
            raise LeaderFailedError(str(error), has_begun=has_begun) from None

    def _failed(self, text: str) -> LeaderFailedError:
        node = self._stream.peer.node
        return LeaderFailedError(f"node {node} gives no answer: {text}", has_begun=True)

    def hang_up(self) -> None:
        """Let the leader finish (see ForwardedAnswer)."""
        with contextlib.suppress(LinkError):
            self._stream.end()

    def close(self) -> None:
        """End the stream, and the work at the leader if it has not ended."""
        if self._is_whole:
            self.hang_up()
        else:
            self._stream.cancel()


class OwnAnswer:
    """Answer that this node gives itself (see ForwardedAnswer)."""

    def __init__(self) -> None:
        self._head: asyncio.Future[AnswerHead | None] = asyncio.get_running_loop().create_future()
        self._pieces: asyncio.Queue[bytes | None] = asyncio.Queue(PIECES_MAX)
        self._hung_up = asyncio.Event()
        self._has_failed = False
        self._task: asyncio.Task[None] | None = None

    def begin(self, task: asyncio.Task[None]) -> None:
        """Note the task that answers."""
        self._task = task

    async def run(self, app: ASGIApp, request: ForwardedRequest) -> None:
        """Answer the request."""
        is_first = True

        async def receive() -> Message:
            nonlocal is_first
            if is_first:
                is_first = False
                return {"type": "http.request", "body": request.body, "more_body": False}
            await self._hung_up.wait()
            return {"type": "http.disconnect"}

        try:
            await app(_scope(request), receive, self._send)
        except Exception:
            self._has_failed = True
            logger.exception("a request was not answered: %s %s", request.method, request.path)
        finally:
            if not self._head.done():
                self._head.set_result(None)
        await self._pieces.put(None)

    async def _send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self._head.set_result(AnswerHead.of(message))
        elif message["type"] == "http.response.body" and message.get("body"):
            await self._pieces.put(bytes(message["body"]))

    async def head(self) -> AnswerHead:
        """Wait for the head. Raises LeaderFailedError."""
        head = await asyncio.shield(self._head)
        if head is None:
            raise self._failed()
        return head

    async def pieces(self) -> AsyncIterator[bytes]:
        """Yield the pieces of the body. Raises LeaderFailedError."""
        while (piece := await self._pieces.get()) is not None:
            yield piece
        if self._has_failed:
            raise self._failed()

    @staticmethod
    def _failed() -> LeaderFailedError:
        return LeaderFailedError(
            "a mistake of this node's; its log has it", has_begun=True, status=500
        )

    def hang_up(self) -> None:
        """Let the work be finished (see ForwardedAnswer)."""
        self._hung_up.set()

    def close(self) -> None:
        """Cancel the work if it has not ended."""
        if self._task is not None:
            self._task.cancel()


class _Client:
    """The client of a forwarded request, as the application receives from it."""

    def __init__(self, body: bytes, stream: LinkStream) -> None:
        self._body: bytes | None = body
        self._stream = stream

    async def receive(self) -> Message:
        """Return the body, then wait until the client is gone (see the ASGI specification)."""
        if self._body is not None:
            body, self._body = self._body, None
            return {"type": "http.request", "body": body, "more_body": False}
        with contextlib.suppress(LinkError):
            while await self._stream.receive() is not None:
                pass  # nothing is expected
        return {"type": "http.disconnect"}


class StreamSender:
    """Sends an answer to the node that has asked, as fast as that takes it."""

    def __init__(self, stream: LinkStream) -> None:
        self._stream = stream
        self._writable = asyncio.Event()
        stream.on_writable(self._writable.set)

    async def send(self, message: Message) -> None:
        """Send a part of the answer (see the ASGI specification). Raises LinkError."""
        if message["type"] == "http.response.start":
            self._stream.send(AnswerHead.of(message).pack())
        elif message["type"] == "http.response.body" and message.get("body"):
            # If the stream fails meanwhile, this is cancelled.
            while not self._stream.writable:
                self._writable.clear()
                await self._writable.wait()
            self._stream.send(message["body"])


def _scope(request: ForwardedRequest) -> Scope:
    """Return the scope of a request (see the ASGI specification)."""
    return {
        "type": "http",
        "asgi": {"version": "3.0", "spec_version": "2.3"},
        "http_version": "1.1",
        "method": request.method,
        "scheme": "http",
        "path": request.path,
        "raw_path": request.path.encode(),
        "query_string": request.query.encode(),
        "root_path": "",
        "headers": [(b"content-type", b"application/json")],
        "client": request.user.peer,
        "server": None,
        RELEASE_BODY: _release_nothing,
        FORWARDED: request,
    }


def _release_nothing(_size: int) -> None:
    """Do nothing: the node that was asked counts bodies."""
