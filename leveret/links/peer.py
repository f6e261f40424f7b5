"""A peer: the node at the other end of links that this node dials."""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Protocol

from leveret.links.breaker import BreakerState, CircuitBreaker
from leveret.links.counters import PeerCounters
from leveret.links.errors import (
    CloseReason,
    PeerRefusedError,
    PeerUnavailableError,
    RequestTimeoutError,
    Unavailable,
)
from leveret.links.events import (
    Answered,
    RequestRefused,
    StreamEnded,
    StreamFailed,
    StreamMessage,
    StreamOpened,
)
from leveret.links.handshake import Dialing
from leveret.links.sockets import LinkSocket
from leveret.links.streams import LinkStream, check_size
from leveret.ports.callbacks import call_each
from leveret.ports.log_text import one_line

if TYPE_CHECKING:
    import ssl
    from collections.abc import Callable, Coroutine

    from leveret.links.buffers import MessageBuffers
    from leveret.links.events import LinkEvent
    from leveret.links.handshake import HandshakeTerms, LinkAgreement
    from leveret.links.identity import NodeIdentity
    from leveret.links.outgoing import Payload
    from leveret.links.settings import LinkSettings

__all__ = ["LinkServices", "LinkTls", "Peer"]

logger = logging.getLogger(__name__)


class LinkTls(Protocol):
    """Source of TLS contexts; each connection has the newest."""

    def dialing(self) -> ssl.SSLContext:
        """Return the context of a connection that this node dials."""
        ...

    def accepting(self) -> ssl.SSLContext:
        """Return the context of a connection from another node."""
        ...


@dataclass(frozen=True, slots=True)
class LinkServices:
    """Services that all links of a node need of the world around them.

    `spawn` starts a task that is the owner's, `random` returns a number from 0 to 1, `nonce` bytes
    that nobody guesses.
    """

    terms: HandshakeTerms
    settings: LinkSettings
    spawn: Callable[[Coroutine[object, object, None]], asyncio.Task[None]]
    monotonic_ns: Callable[[], int]
    random: Callable[[], float]
    nonce: Callable[[], bytes]
    buffers: MessageBuffers
    tls: LinkTls | None = None

    def now_ms(self) -> int:
        """Return the monotonic clock in ms."""
        return self.monotonic_ns() // 1_000_000


class DialedLink:
    """One connection to a peer, with the requests and streams that were begun on it."""

    def __init__(self, peer: Peer) -> None:
        self.link: LinkSocket  # once it is open
        self.identity: NodeIdentity
        self.ended: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self.is_unresponsive = False
        self.was_open = False
        self._peer = peer
        self._waiting: dict[int, asyncio.Future[memoryview]] = {}
        self._streams: dict[int, LinkStream] = {}
        self._timeouts = 0  # in a row

    # -- the socket's owner (see LinkOwner)

    def open(self, link: LinkSocket, agreement: LinkAgreement) -> PeerCounters:
        """Note that the link is open."""
        self.link, self.identity, self.was_open = link, agreement.peer, True
        # In a later turn: the socket has no machine yet.
        asyncio.get_running_loop().call_soon(self._peer.connected, self)
        return self._peer.counters

    def happened(self, event: LinkEvent) -> None:
        """Pass an event on to the request or stream that it is of."""
        if isinstance(event, Answered):
            self._timeouts = 0
            self._waiting.pop(event.id).set_result(event.payload)
        elif isinstance(event, RequestRefused):
            self._timeouts = 0
            self._waiting.pop(event.id).set_exception(PeerRefusedError(event.code, event.text))
        elif isinstance(event, StreamMessage | StreamEnded | StreamFailed):
            self._streams[event.id].happened(event)

    def drained(self) -> None:
        """Tell the peer."""
        self._peer.drained()

    def writable_again(self, stream_id: int) -> None:
        """Tell the stream."""
        if stream_id in self._streams:
            self._streams[stream_id].became_writable()

    def lost(self, reason: str, *, is_unresponsive: bool) -> None:
        """End everything that was begun on this link."""
        self.is_unresponsive |= is_unresponsive
        waiting, self._waiting = self._waiting, {}
        for future in waiting.values():
            if not future.done():
                future.set_exception(PeerUnavailableError(self._peer.node, Unavailable.LOST))
        streams, self._streams = self._streams, {}
        for stream in streams.values():
            stream.lost()
        if not self.ended.done():
            self.ended.set_result(reason)

    # -- what is begun

    async def request(self, kind: int, payload: Payload, timeout_s: float) -> memoryview:
        """Send a request and wait for its answer (see Peer)."""
        self._check_open()
        link, machine = self.link, self.link.machine
        check_size(link, payload)
        if link.is_full or not machine.may_request:
            raise PeerUnavailableError(self._peer.node, Unavailable.QUEUE_FULL)
        request_id = machine.request(kind, payload)
        link.touch()
        loop = asyncio.get_running_loop()
        future: asyncio.Future[memoryview] = loop.create_future()
        self._waiting[request_id] = future
        timer = loop.call_later(timeout_s, self._expire, request_id, timeout_s)
        try:
            return await future
        except asyncio.CancelledError:
            self._abandon(request_id)
            raise
        finally:
            timer.cancel()

    def _check_open(self) -> None:
        """Raise PeerUnavailableError after the link was lost: the peer is told a turn later."""
        if self.ended.done():
            raise PeerUnavailableError(self._peer.node, Unavailable.DOWN)

    def _abandon(self, request_id: int) -> asyncio.Future[memoryview] | None:
        future = self._waiting.pop(request_id, None)
        if future is not None:
            self.link.machine.cancel(request_id)
            self.link.touch()
        return future

    def _expire(self, request_id: int, timeout_s: float) -> None:
        future = self._abandon(request_id)
        if future is None or future.done():
            return
        counters = self._peer.counters
        counters.requests_timed_out += 1
        self._timeouts += 1
        text = f"node {self._peer.node} did not answer within {timeout_s} s"
        future.set_exception(RequestTimeoutError(text))
        if self._timeouts >= self._peer.services.settings.timeouts_max:
            self.is_unresponsive = True
            self.link.close(CloseReason.UNRESPONSIVE, "several requests in a row were not answered")

    def send(self, kind: int, payload: Payload) -> None:
        """Send a one-way message (see Peer)."""
        self._check_open()
        check_size(self.link, payload)
        if self.link.is_full:
            raise PeerUnavailableError(self._peer.node, Unavailable.QUEUE_FULL)
        self.link.machine.send(kind, payload)
        self.link.touch()

    def open_stream(self, kind: int, payload: Payload) -> LinkStream:
        """Open a stream (see Peer)."""
        self._check_open()
        check_size(self.link, payload)
        self._forget_ended()
        if self.link.is_full or not self.link.machine.may_open:
            raise PeerUnavailableError(self._peer.node, Unavailable.QUEUE_FULL)
        stream_id = self.link.machine.open(kind, payload)
        self.link.touch()
        opened = StreamOpened(stream_id, kind, memoryview(b""))
        stream = self._streams[stream_id] = LinkStream(self.link, self.identity, opened)
        return stream

    def _forget_ended(self) -> None:
        if len(self._streams) > 2 * self.link.machine.streams_count:
            has_stream = self.link.machine.has_stream
            self._streams = {at: each for at, each in self._streams.items() if has_stream(at)}


class Peer:
    """Another node, as this one reaches it: dialed for as long as it has an address.

    It is made by `Links.peer`; `close`, `set_address` and `clear_address` are those of `Links`.
    """

    def __init__(self, node: int, services: LinkServices) -> None:
        self.node = node
        self.services = services
        self.counters = PeerCounters()
        self.breaker = CircuitBreaker(services.settings, services.random)
        self._address: tuple[str, int] | None = None
        self._link: DialedLink | None = None  # while it is open
        self._attempt: DialedLink | None = None  # being dialed
        self._opened: asyncio.Future[DialedLink] | None = None  # for those who wait for it
        self._waiting_count = 0
        self._changed = asyncio.Event()  # the address, or the end
        self._task: asyncio.Task[None] | None = None
        self._closed = False
        self._last_reason = ""
        self._on_writable: list[Callable[[], object]] = []
        self._on_state: list[Callable[[bool], object]] = []

    # -- what it is like

    @property
    def identity(self) -> NodeIdentity | None:
        """Identity that the node has proved, None while it is not connected."""
        return self._link.identity if self._link is not None else None

    @property
    def is_connected(self) -> bool:
        """Whether a link is open."""
        return self._link is not None

    @property
    def writable(self) -> bool:
        """Whether requests and messages are taken. If not, callbacks are called once they are."""
        link = self._link
        return link is not None and not link.ended.done() and not link.link.is_full

    def on_writable(self, callback: Callable[[], object]) -> None:
        """Call `callback` whenever `writable` may have become true."""
        self._on_writable.append(callback)

    def on_state(self, callback: Callable[[bool], object]) -> None:
        """Call `callback` with True when it is connected, with False when that is lost."""
        self._on_state.append(callback)

    # -- what it is asked

    async def request(self, kind: int, payload: Payload, *, timeout_s: float) -> memoryview:
        """Send a request, and return its answer. Buffers must not be changed before that.

        While the node is being dialed for the first time, or anew after a link that had held, the
        request waits for the link. If the caller is cancelled, the other side's handler is as well.
        Raises PeerUnavailableError, RequestTimeoutError, MessageTooLargeError, and PeerRefusedError
        if the other side does not serve the request.
        """
        link = self._link
        if link is None:
            loop = asyncio.get_running_loop()
            begun = loop.time()
            link = await self._connection(timeout_s)
            timeout_s = max(0.0, timeout_s - (loop.time() - begun))
        return await link.request(kind, payload, timeout_s)

    def send(self, kind: int, payload: Payload) -> None:
        """Send a one-way message, which arrives after those sent before it on the same link.

        Its buffers must not be changed. Raises PeerUnavailableError if the node is not connected or
        too much is queued, and MessageTooLargeError.
        """
        self._connected_link().send(kind, payload)

    def open_stream(self, kind: int, payload: Payload) -> LinkStream:
        """Open a stream. Raises PeerUnavailableError and MessageTooLargeError."""
        return self._connected_link().open_stream(kind, payload)

    def _connected_link(self) -> DialedLink:
        if self._link is None:
            raise self._unavailable()
        return self._link

    def _unavailable(self) -> PeerUnavailableError:
        if self._closed:
            why = Unavailable.CLOSED
        elif self._address is None:
            why = Unavailable.NO_ADDRESS
        elif self.breaker.state is not BreakerState.CLOSED:
            why = Unavailable.BREAKER_OPEN
        else:
            why = Unavailable.DOWN
        return PeerUnavailableError(self.node, why)

    async def _connection(self, timeout_s: float) -> DialedLink:
        """Wait for the attempt to connect. Raises PeerUnavailableError where there is none."""
        opened = self._opened
        if opened is None or self.breaker.state is not BreakerState.CLOSED:
            raise self._unavailable()
        if self._waiting_count >= self.services.settings.limits.requests_max:
            raise PeerUnavailableError(self.node, Unavailable.QUEUE_FULL)
        self._waiting_count += 1
        try:
            async with asyncio.timeout(timeout_s):
                return await asyncio.shield(opened)
        except TimeoutError:
            raise self._unavailable() from None
        finally:
            self._waiting_count -= 1

    # -- its address, its end

    def set_address(self, host: str, port: int) -> None:
        """Dial this address from now on. A link to another one is closed."""
        if self._address == (host, port):
            return
        self._address = (host, port)
        self.breaker.reset()
        self._await_link()
        self._hang_up("the node has another address")
        self._changed.set()
        if self._task is None:
            self._task = self.services.spawn(self._run())

    def seen(self) -> None:
        """Dial at once if an attempt is waited for: the node has just dialed this one."""
        if self._attempt is None and self._address is not None:
            self.breaker.reset()
            self._changed.set()

    def clear_address(self) -> None:
        """End the link and everything on it, and dial no more until there is an address again."""
        if self._address is None:
            return
        self._address = None
        self._hang_up("the node is gone")
        self._changed.set()
        self._end_waiting()

    async def close(self) -> None:
        """End the link and everything on it, for good."""
        self._closed = True
        self._hang_up("not needed any more")
        self._changed.set()
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task
        self._end_waiting()

    def _hang_up(self, why: str) -> None:
        for attempt in (self._link, self._attempt):
            if attempt is not None and attempt.was_open:
                attempt.link.close(CloseReason.GOING_AWAY, why)
            elif attempt is not None and not attempt.ended.done():
                attempt.ended.set_result(why)

    # -- dialing

    async def _run(self) -> None:
        while not self._closed:
            await self._wait()
            if self._closed or self._address is None:
                continue
            if not self.breaker.may_try(self.services.now_ms()):
                continue
            self._await_link()
            attempt = self._attempt = DialedLink(self)
            reason = "not needed any more"
            try:
                reason = await self._dial(attempt)
            finally:
                self._disconnected(attempt, reason)

    async def _wait(self) -> None:
        """Wait until the next attempt is due, or the address has changed."""
        self._changed.clear()
        if self._address is None:
            await self._changed.wait()
            return
        wait_ms = self.breaker.retry_at_ms - self.services.now_ms()
        if wait_ms > 0:
            with suppress(TimeoutError):
                async with asyncio.timeout(wait_ms / 1000):
                    await self._changed.wait()

    def _await_link(self) -> None:
        if self._opened is None:
            self._opened = asyncio.get_running_loop().create_future()

    def _end_waiting(self) -> None:
        opened, self._opened = self._opened, None
        if opened is not None and not opened.done():
            opened.set_exception(self._unavailable())
            opened.exception()  # perhaps nobody waits

    async def _dial(self, attempt: DialedLink) -> str:
        """Connect, and stay until the link is lost. Returns why it was."""
        services, settings = self.services, self.services.settings
        assert self._address is not None, "a peer without an address is not dialed"
        host, port = self._address
        tls = services.tls
        limit_ms = settings.connect_ms_max + (settings.handshake_ms_max if tls else 0)
        link = LinkSocket(
            attempt,
            Dialing(services.terms, services.nonce(), self.node),
            settings,
            services.buffers,
            is_dialer=True,
            monotonic_ns=services.monotonic_ns,
        )
        try:
            async with asyncio.timeout(limit_ms / 1000):
                await asyncio.get_running_loop().create_connection(
                    lambda: link,
                    host,
                    port,
                    ssl=tls.dialing() if tls else None,
                    ssl_handshake_timeout=settings.handshake_ms_max / 1000 if tls else None,
                )
        except TimeoutError:
            return f"{host}:{port} did not answer within {limit_ms} ms"
        except OSError as error:
            return one_line(error)
        try:
            return await attempt.ended
        finally:
            link.close(CloseReason.GOING_AWAY, "not needed any more")

    def connected(self, attempt: DialedLink) -> None:
        """Note that the handshake of an attempt succeeded."""
        if attempt.ended.done() or attempt is not self._attempt:
            return
        logger.info("connected with node %d at %s", self.node, attempt.link.address)
        self._last_reason = ""
        self.counters.connects += 1
        self.breaker.succeeded(self.services.now_ms())
        self._link = attempt
        opened, self._opened = self._opened, None
        if opened is not None and not opened.done():
            opened.set_result(attempt)
        self._tell_state(is_connected=True)

    def _disconnected(self, attempt: DialedLink, reason: str) -> None:
        """Note that an attempt or a link has ended."""
        was_connected = self._link is attempt
        self._link = self._attempt = None
        self.counters.failures += 1
        self.counters.queued_bytes = self.counters.round_trip_ns = 0
        is_new_address = self._changed.is_set()
        if not is_new_address:
            now_ms = self.services.now_ms()
            (self.breaker.trip if attempt.is_unresponsive else self.breaker.failed)(now_ms)
            self._end_waiting()
        is_wanted = not self._closed and self._address is not None
        if reason != self._last_reason and is_wanted:
            self._last_reason = reason
            logger.warning(
                "no link with node %d (circuit breaker %s): %s; it is dialed until it answers",
                self.node,
                self.breaker.state.value,
                one_line(reason),
            )
        if was_connected:
            self._tell_state(is_connected=False)

    def drained(self) -> None:
        """Call back those who wait until messages are taken again."""
        call_each(self._on_writable, _report)

    def _tell_state(self, *, is_connected: bool) -> None:
        call_each([partial(each, is_connected) for each in self._on_state], _report)
        call_each(self._on_writable, _report)


def _report(callback: object, error: Exception) -> None:
    logger.error("a callback %r of a peer failed", callback, exc_info=error)
