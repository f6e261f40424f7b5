"""A link that another node has dialed: its requests, messages and streams go to handlers."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Protocol

from leveret.links.errors import (
    LinkError,
    MessageTooLargeError,
    PeerRefusedError,
    RefusalCode,
    StreamFailedError,
)
from leveret.links.events import (
    MessageCame,
    RequestCame,
    RequestCancelled,
    StreamEnded,
    StreamFailed,
    StreamMessage,
    StreamOpened,
)
from leveret.links.identity import NodeIdentity
from leveret.links.outgoing import Payload, SelfChecked
from leveret.links.streams import LinkStream, check_size
from leveret.ports.log_text import one_line

if TYPE_CHECKING:
    from leveret.links.counters import PeerCounters
    from leveret.links.events import LinkEvent
    from leveret.links.handshake import LinkAgreement
    from leveret.links.sockets import LinkSocket

__all__ = ["AcceptedLink", "AcceptedLinkOwner", "Handlers"]

logger = logging.getLogger(__name__)

RequestHandler = Callable[
    [NodeIdentity, memoryview], Coroutine[object, object, Payload | SelfChecked]
]
MessageHandler = Callable[[NodeIdentity, memoryview], None]
StreamHandler = Callable[[LinkStream], Coroutine[object, object, None]]


@dataclass(frozen=True, slots=True)
class Handlers:
    """Handlers of what other nodes send, by its kind (a number below 65,536).

    A request's handler returns the answer, whose buffers must not be changed afterwards; of large
    records as SelfChecked. It is cancelled when the answer is not wanted any more or the link is
    lost. PeerRefusedError is the refusal that the other side sees. Messages are handled in their
    order, so their handlers do not wait. When a stream's handler returns, this side of the stream
    has ended; when it raises, the stream has failed.
    """

    requests: Mapping[int, RequestHandler] = field(default_factory=dict)
    messages: Mapping[int, MessageHandler] = field(default_factory=dict)
    streams: Mapping[int, StreamHandler] = field(default_factory=dict)


class AcceptedLinkOwner(Protocol):
    """Owner of all links of a node, as an accepted link needs it."""

    @property
    def handlers(self) -> Handlers:
        """Handlers of what other nodes send."""
        ...

    def spawn(self, work: Coroutine[object, object, None]) -> asyncio.Task[None]:
        """Start a task."""
        ...

    def accepted(self, link: AcceptedLink) -> PeerCounters:
        """Note that the handshake succeeded. Returns the counters to be kept."""
        ...

    def gone(self, link: AcceptedLink, reason: str) -> None:
        """Note that the link is gone, or was never there."""
        ...


class AcceptedLink:
    """One connection from a peer, with the tasks that work for it.

    Their number is bounded by the requests and streams that the peer may have (LinkLimits).
    """

    def __init__(self, links: AcceptedLinkOwner) -> None:
        self.link: LinkSocket  # it is made with this as its owner
        self.identity: NodeIdentity
        self.is_open = False
        self._links = links
        self._tasks: dict[int, asyncio.Task[None]] = {}
        self._streams: dict[int, LinkStream] = {}
        self._drained: asyncio.Future[None] | None = None

    # -- the socket's owner (see LinkOwner)

    def open(self, link: LinkSocket, agreement: LinkAgreement) -> PeerCounters:
        """Note that the link is open."""
        assert link is self.link, "each has one"
        self.identity, self.is_open = agreement.peer, True
        return self._links.accepted(self)

    def happened(self, event: LinkEvent) -> None:
        """Start the handler of a request or stream, or pass an event on to it."""
        if isinstance(event, RequestCame):
            self._tasks[event.id] = self._links.spawn(self._serve(event))
        elif isinstance(event, RequestCancelled):
            self._cancel(event.id)
        elif isinstance(event, MessageCame):
            self._handle_message(event)
        elif isinstance(event, StreamOpened):
            stream = self._streams[event.id] = LinkStream(self.link, self.identity, event)
            self._tasks[event.id] = self._links.spawn(self._serve_stream(event.id, stream))
        elif isinstance(event, StreamMessage | StreamEnded | StreamFailed):
            self._stream_happened(event)

    def _stream_happened(self, event: StreamMessage | StreamEnded | StreamFailed) -> None:
        stream = self._streams.get(event.id)
        if isinstance(event, StreamFailed):
            self._cancel(event.id)
        if stream is not None:
            stream.happened(event)
        elif isinstance(event, StreamMessage):
            # The handler has returned: the other side shall come to its end, too.
            self.link.machine.consumed(event.id, len(event.payload))

    def drained(self) -> None:
        """Let answers be queued again."""
        drained, self._drained = self._drained, None
        if drained is not None:
            drained.set_result(None)

    def writable_again(self, stream_id: int) -> None:
        """Tell the stream."""
        if stream_id in self._streams:
            self._streams[stream_id].became_writable()

    def lost(self, reason: str, *, is_unresponsive: bool) -> None:  # noqa: ARG002  # the text says so
        """End everything that works for this link."""
        for stream in list(self._streams.values()):
            stream.lost()
        for task in list(self._tasks.values()):
            task.cancel()
        self._links.gone(self, reason)

    def _cancel(self, task_id: int) -> None:
        task = self._tasks.get(task_id)
        if task is not None:
            task.cancel()

    # -- handlers

    def _handle_message(self, event: MessageCame) -> None:
        handler = self._links.handlers.messages.get(event.kind)
        try:
            if handler is not None:
                handler(self.identity, event.payload)
        except Exception as error:  # noqa: BLE001  # the next message has another handler
            self._report("message", event.kind, error)

    async def _serve(self, event: RequestCame) -> None:
        """Answer a request, or refuse it."""
        machine = self.link.machine
        try:
            answer = await self._answer(event)
        except PeerRefusedError as refusal:
            machine.refuse(event.id, refusal.code, refusal.text)
        except MessageTooLargeError as error:
            machine.refuse(event.id, RefusalCode.INTERNAL, str(error))
        except Exception as error:  # noqa: BLE001  # the peer is told, this node's log says more
            self._report("request", event.kind, error)
            machine.refuse(event.id, RefusalCode.INTERNAL, HANDLER_FAILED)
        else:
            is_checked = not isinstance(answer, SelfChecked)
            payload = answer.payload if isinstance(answer, SelfChecked) else answer
            machine.answer(event.id, payload, is_checked=is_checked)
        finally:
            self._tasks.pop(event.id, None)
        self.link.touch()

    async def _answer(self, event: RequestCame) -> Payload | SelfChecked:
        handler = self._links.handlers.requests.get(event.kind)
        if handler is None:
            raise PeerRefusedError(
                RefusalCode.UNKNOWN_KIND, f"no request of kind {event.kind} is known here"
            )
        answer = await handler(self.identity, event.payload)
        check_size(self.link, answer.payload if isinstance(answer, SelfChecked) else answer)
        while self.link.is_full:
            if self._drained is None:
                self._drained = asyncio.get_running_loop().create_future()
            await asyncio.shield(self._drained)
        return answer

    async def _serve_stream(self, stream_id: int, stream: LinkStream) -> None:
        handler = self._links.handlers.streams.get(stream.kind)
        try:
            if handler is None:
                stream.fail(
                    RefusalCode.UNKNOWN_KIND, f"no stream of kind {stream.kind} is known here"
                )
            else:
                await handler(stream)
                stream.end()
        except PeerRefusedError as refusal:
            stream.fail(refusal.code, refusal.text)
        except (StreamFailedError, LinkError):  # by the other side, or with the link
            stream.cancel()
        except asyncio.CancelledError:
            stream.cancel()
            raise
        except Exception as error:  # noqa: BLE001  # as above
            self._report("stream", stream.kind, error)
            stream.fail(RefusalCode.INTERNAL, HANDLER_FAILED)
        finally:
            self._tasks.pop(stream_id, None)
            self._streams.pop(stream_id, None)

    def _report(self, what: str, kind: int, error: Exception) -> None:
        logger.error(
            "the handler of a %s of kind %d from node %d failed",
            what,
            kind,
            self.identity.node,
            exc_info=error,
            extra={"source": one_line(self.link.address.rpartition(":")[0])},
        )


HANDLER_FAILED: Final = "its handler failed; the log of that node says how"
