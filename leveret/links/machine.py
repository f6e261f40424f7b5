"""Machine of one link after its handshake: requests, one-way messages, streams and their credit.

    dialer                                        acceptor
      REQUEST ─────────────────────────────────────►  RequestCame
      [CANCEL] ────────────────────────────────────►  RequestCancelled
      Answered / RequestRefused ◄────────────────────────── ANSWER | REFUSED, exactly one
      ONE_WAY ─────────────────────────────────────►  MessageCame
      OPEN ────────────────────────────────────────►  StreamOpened
      MESSAGE*, then END or REFUSED ◄──────────────► MESSAGE*, then END or REFUSED

Only the dialer begins. A request counts until its answer is there, cancelled or not; a stream until
both sides have sent END or REFUSED: who receives REFUSED first answers END. So both sides always
agree on what may come, and anything else closes the link. Only CANCEL, CREDIT and REFUSED may come
for what has just ended; they are ignored then.
"""

from __future__ import annotations

from struct import Struct
from typing import TYPE_CHECKING, Final

from leveret.links.errors import CloseReason, LinkProtocolError, RefusalCode
from leveret.links.events import (
    Answered,
    HeartbeatAnswered,
    LinkClosed,
    LinkEvent,
    MessageCame,
    RequestCame,
    RequestCancelled,
    RequestRefused,
    StreamEnded,
    StreamFailed,
    StreamMessage,
    StreamOpened,
)
from leveret.links.frames import (
    FRAME_BYTES_MAX,
    IN_PLACE_BYTES_MAX,
    FrameKind,
    LinkFrame,
    LinkFrameReader,
)
from leveret.links.outgoing import MESSAGE_COST_BYTES, Outgoing, OutgoingMessage, SendQueue

if TYPE_CHECKING:
    from collections.abc import Callable

    from leveret.links.buffers import MessageBuffers
    from leveret.links.counters import PeerCounters
    from leveret.links.outgoing import Payload
    from leveret.links.settings import LinkLimits, LinkSettings

__all__ = ["LinkMachine"]

HEARTBEAT: Final = Struct("<Q")
TEXT_BYTES_MAX: Final = 512  # of the text beside an error's code


class _Partial:
    """A message whose last fragment is not there. Without `whole` it is not wanted."""

    __slots__ = ("filled", "first", "is_refused", "whole")

    def __init__(self, first: LinkFrame, whole: memoryview | None, *, is_refused: bool) -> None:
        self.first = first
        self.whole = whole
        self.filled = 0
        self.is_refused = is_refused  # a request that is answered BUSY once it is there


class _OpenStream:
    """State of a stream on one side."""

    __slots__ = ("consumed", "has_ended", "has_failed", "is_over", "queue", "window")

    def __init__(self, send_credit: int, window: int) -> None:
        self.queue = SendQueue(send_credit)
        self.window = window  # bytes that the other side may still send
        self.consumed = 0  # bytes that were consumed and are not granted again
        self.has_ended = False  # whether END or REFUSED was queued here
        self.has_failed = False  # whether it was REFUSED: what comes is dropped
        self.is_over = False  # whether END or REFUSED has come


class LinkMachine:
    """One side of a link. `events` gathers what has happened; whoever drives it empties the list.

    `own` is what this side accepts, `peer` what the other one does.
    """

    def __init__(
        self,
        settings: LinkSettings,
        peer: LinkLimits,
        counters: PeerCounters,
        buffers: MessageBuffers,
        *,
        is_dialer: bool,
    ) -> None:
        self.events: list[LinkEvent] = []
        self.writable_again: list[int] = []  # streams that were full, and are so no more
        self._settings = settings
        self._own = settings.limits
        self._peer = peer
        self._counters = counters
        self._buffers = buffers
        self._is_dialer = is_dialer
        self._outgoing = Outgoing(settings, peer.interleaved_max)
        self._one_way = SendQueue(None)
        self._reader = LinkFrameReader(self, settings.input_bytes)
        self._last_id = 0
        # Requests that are not answered: of a dialer whether the answer is wanted, of an acceptor
        # the bytes of the request.
        self._requests: dict[int, int] = {}
        self._handled_bytes = 0
        self._streams: dict[int, _OpenStream] = {}
        self._partials: dict[int, _Partial] = {}
        self._waste: memoryview | None = None  # place of what is dropped
        self._pong = b""  # the answer to the last heartbeat
        self._full_streams: set[int] = set()
        self._ending: set[int] = set()  # streams that are over once their last messages are sent
        self._closed = False
        self._takers: dict[FrameKind, Callable[[LinkFrame, memoryview], None]] = {
            FrameKind.REQUEST: self._take_request,
            FrameKind.ANSWER: self._take_answer,
            FrameKind.ONE_WAY: self._take_one_way,
            FrameKind.OPEN: self._take_open,
            FrameKind.MESSAGE: self._take_message,
            FrameKind.PING: self._take_ping,
            FrameKind.PONG: self._take_pong,
            FrameKind.CLOSE: self._take_close,
            FrameKind.REFUSED: self._take_refused,
            FrameKind.CANCEL: self._take_cancel,
            FrameKind.CREDIT: self._take_credit,
            FrameKind.END: self._take_end,
        }

    # -- bytes

    def buffer(self) -> memoryview:
        """Return where the next bytes are to be put."""
        return self._reader.buffer()

    def received(self, count: int) -> None:
        """Process bytes that were put into `buffer()`. Raises LinkProtocolError."""
        if not self._closed:
            self._counters.bytes_received += count
            self._reader.received(count)

    @property
    def has_output(self) -> bool:
        """Whether there is something to be sent."""
        return bool(self._outgoing or self._pong)

    @property
    def queued_bytes(self) -> int:
        """Bytes that wait to be sent, those aside that wait in their stream."""
        return self._outgoing.queued_bytes + self._one_way.bytes_waiting

    @property
    def is_full(self) -> bool:
        """Whether too much is queued to add requests and messages."""
        return self.queued_bytes >= self._settings.queued_bytes_max

    @property
    def requests_count(self) -> int:
        """Number of requests that are not answered."""
        return len(self._requests)

    @property
    def streams_count(self) -> int:
        """Number of streams that are not over."""
        return len(self._streams)

    def take(self, bytes_max: int) -> list[bytes | memoryview]:
        """Return buffers to be sent next, of `bytes_max` bytes or a little more."""
        if self._pong:
            self._outgoing.add_control(LinkFrame(0, FrameKind.PONG, 0, 0, 0), self._pong)
            self._pong = b""
        buffers = self._outgoing.take(bytes_max)
        if self._full_streams:
            self._find_writable()
        for stream_id in list(self._ending):
            self._drop_if_over(stream_id, self._streams[stream_id])
        return buffers

    def _find_writable(self) -> None:
        half = self._settings.stream_queued_bytes_max // 2
        for stream_id in list(self._full_streams):
            stream = self._streams.get(stream_id)
            if stream is None or (stream.queue.bytes_waiting <= half and not self.is_full):
                self._full_streams.discard(stream_id)
                if stream is not None:
                    self.writable_again.append(stream_id)

    # -- what this side does: the link

    def ping(self, now_ns: int) -> None:
        """Send a heartbeat."""
        self._outgoing.add_control(LinkFrame(0, FrameKind.PING, 0, 0, 0), HEARTBEAT.pack(now_ns))

    def close(self, reason: CloseReason, text: str) -> None:
        """Send CLOSE before everything else; nothing that comes afterwards is read."""
        self._closed = True
        self._outgoing.add_control(LinkFrame(0, FrameKind.CLOSE, reason, 0, 0), _cut(text))

    # -- what this side does: requests and one-way messages

    @property
    def may_request(self) -> bool:
        """Whether the other side accepts one more request, and the queue does."""
        return len(self._requests) < self._peer.requests_max and not self.is_full

    def fits(self, size: int) -> bool:
        """Return whether the other side accepts a message of this size."""
        return size <= self._peer.message_bytes_max

    def request(self, kind: int, payload: Payload) -> int:
        """Send a request. Returns its id."""
        assert self._is_dialer, "only the dialer begins"
        assert self.may_request, "the caller asks before"
        self._last_id += 1
        self._requests[self._last_id] = True
        self._counters.requests += 1
        self._send(FrameKind.REQUEST, kind, self._last_id, payload)
        return self._last_id

    def cancel(self, request_id: int) -> None:
        """Drop a request: its answer is not wanted any more."""
        if not self._requests.get(request_id):
            return
        self._requests[request_id] = False
        self._counters.requests_cancelled += 1
        partial = self._partials.get(request_id)
        if partial is not None:
            partial.whole = None
        dropped = self._outgoing.drop_large(request_id)
        if dropped is not None and not dropped.begun:
            del self._requests[request_id]  # the other side knows nothing of it
            return
        self._send_last(_last(FrameKind.CANCEL, request_id), b"", dropped)

    def send(self, kind: int, payload: Payload) -> None:
        """Send a one-way message, after those before it."""
        assert self._is_dialer, "only the dialer begins"
        self._counters.messages += 1
        self._send(FrameKind.ONE_WAY, kind, 0, payload, owner=self._one_way)

    def answer(self, request_id: int, payload: Payload, *, is_checked: bool = True) -> None:
        """Answer a request. Nothing is done for one that was cancelled."""
        if self._forget(request_id):
            frame = LinkFrame(0, FrameKind.ANSWER, 0, request_id, 0)
            self._outgoing.add(OutgoingMessage(frame, payload, is_checked=is_checked))

    def refuse(self, request_id: int, code: int, text: str) -> None:
        """Refuse a request. Nothing is done for one that was cancelled."""
        if self._forget(request_id):
            self._counters.requests_refused += 1
            self._send(FrameKind.REFUSED, code, request_id, _cut(text))

    def _forget(self, request_id: int) -> bool:
        size = self._requests.pop(request_id, None)
        self._handled_bytes -= size or 0
        return size is not None

    def _send(
        self,
        kind: FrameKind,
        code: int,
        stream_id: int,
        payload: Payload = b"",
        *,
        owner: SendQueue | None = None,
    ) -> None:
        frame = LinkFrame(0, kind, code, stream_id, 0)
        self._outgoing.add(OutgoingMessage(frame, payload, owner=owner))

    def _send_last(
        self,
        frame: LinkFrame,
        text: bytes,
        dropped: OutgoingMessage | None,
        owner: SendQueue | None = None,
    ) -> None:
        """Send the end of something of which a large message was `dropped`, if any.

        The other side counts a message that was begun until then: the end goes before another large
        one can be begun. None of its small messages are queued, for they would be behind it.
        """
        if dropped is not None and dropped.begun:
            self._outgoing.add_control(frame._replace(size=len(text)), text)
        else:
            self._outgoing.add(OutgoingMessage(frame, text, owner=owner))

    # -- what this side does: streams

    @property
    def may_open(self) -> bool:
        """Whether the other side accepts one more stream, and the queue does."""
        return len(self._streams) < self._peer.streams_max and not self.is_full

    def open(self, kind: int, payload: Payload) -> int:
        """Open a stream. Returns its id."""
        assert self._is_dialer, "only the dialer begins"
        assert self.may_open, "the caller asks before"
        self._last_id += 1
        stream = self._streams[self._last_id] = self._new_stream()
        self._send(FrameKind.OPEN, kind, self._last_id, payload, owner=stream.queue)
        return self._last_id

    def has_stream(self, stream_id: int) -> bool:
        """Return whether a stream is not over."""
        return stream_id in self._streams

    def is_writable(self, stream_id: int) -> bool:
        """Return whether a stream takes one more message; if not, `writable_again` names it."""
        stream = self._streams.get(stream_id)
        if stream is None or stream.has_ended:
            return False
        if stream.queue.bytes_waiting < self._settings.stream_queued_bytes_max and not self.is_full:
            return True
        self._full_streams.add(stream_id)
        return False

    def send_message(self, stream_id: int, payload: Payload) -> None:
        """Send a message on a stream that has not ended on this side."""
        stream = self._streams[stream_id]
        assert not stream.has_ended, "the end is the last"
        self._send(FrameKind.MESSAGE, 0, stream_id, payload, owner=stream.queue)

    def end(self, stream_id: int) -> None:
        """End what this side sends on a stream, after the messages before."""
        stream = self._streams.get(stream_id)
        if stream is None or stream.has_ended:
            return
        stream.has_ended = True
        self._send(FrameKind.END, 0, stream_id, owner=stream.queue)
        self._drop_if_over(stream_id, stream)

    def fail(self, stream_id: int, code: int, text: str) -> None:
        """End a stream in both directions; messages that are not sent are dropped."""
        stream = self._streams.get(stream_id)
        if stream is None or stream.has_failed:
            return
        stream.has_ended = stream.has_failed = True
        partial = self._partials.get(stream_id)
        if partial is not None:
            partial.whole = None
        dropped = self._outgoing.drop_waiting(stream.queue)
        if dropped is not None and dropped.frame.kind is FrameKind.OPEN and not dropped.begun:
            del self._streams[stream_id]  # the other side knows nothing of it
            return
        frame = _last(FrameKind.REFUSED, stream_id, code)
        self._send_last(frame, _cut(text), dropped, stream.queue)
        self._drop_if_over(stream_id, stream)

    def consumed(self, stream_id: int, size: int) -> None:
        """Note that a message of a stream was consumed: the other side may send as much again."""
        stream = self._streams.get(stream_id)
        if stream is None or stream.has_failed or stream.is_over:
            return
        stream.consumed += size + MESSAGE_COST_BYTES
        if stream.consumed >= self._own.window_bytes // 2 or stream.window <= 0:
            frame = LinkFrame(0, FrameKind.CREDIT, 0, stream_id, stream.consumed)
            stream.window += stream.consumed
            stream.consumed = 0
            self._outgoing.add_control(frame)

    def _new_stream(self) -> _OpenStream:
        self._counters.streams += 1
        return _OpenStream(self._peer.window_bytes, self._own.window_bytes)

    def _drop_if_over(self, stream_id: int, stream: _OpenStream) -> None:
        """Forget a stream whose end was sent: until then the other side counts it as well."""
        if not (stream.has_ended and stream.is_over):
            return
        if stream.queue.is_empty:
            self._streams.pop(stream_id, None)
            self._ending.discard(stream_id)
        else:
            self._ending.add(stream_id)

    # -- what comes: where its payload belongs (see FrameSink)

    def place(self, frame: LinkFrame) -> memoryview | None:
        """Return where a payload is to be put (see FrameSink)."""
        self._counters.frames_received += 1
        if frame.kind is FrameKind.MORE:
            return self._place_more(frame)
        if frame.kind in STARTS:
            return self._place_first(frame)
        if frame.length > TEXT_BYTES_MAX:
            raise LinkProtocolError(
                CloseReason.TOO_LARGE, f"{frame.length} bytes in a frame {frame.kind.name}"
            )
        return None

    def _place_first(self, frame: LinkFrame) -> memoryview | None:
        if frame.size > self._own.message_bytes_max:
            raise LinkProtocolError(
                CloseReason.TOO_LARGE,
                f"a message of {frame.size} bytes, more than {self._own.message_bytes_max}",
            )
        if not 0 < frame.length <= frame.size and frame.size:
            raise _malformed(frame)
        if frame.length and not frame.size:
            raise _malformed(frame)
        self._check_start(frame)
        if frame.length == frame.size <= IN_PLACE_BYTES_MAX:
            return None
        if len(self._partials) >= self._own.interleaved_max:
            raise LinkProtocolError(CloseReason.TOO_MANY, "too many messages in fragments at once")
        is_refused = frame.kind is FrameKind.REQUEST and self._is_too_much(frame)
        is_wanted = not is_refused and self._is_wanted(frame)
        whole = self._buffers.take(frame.size) if is_wanted else None
        partial = _Partial(frame, whole, is_refused=is_refused)
        self._partials[frame.stream] = partial
        return self._next_place(partial, frame.length)

    def _place_more(self, frame: LinkFrame) -> memoryview:
        partial = self._partials.get(frame.stream)
        if partial is None:
            raise _out_of_order(frame)
        if not 0 < frame.length <= partial.first.size - partial.filled:
            raise _malformed(frame)
        return self._next_place(partial, frame.length)

    def _next_place(self, partial: _Partial, length: int) -> memoryview:
        if partial.whole is not None:
            return partial.whole[partial.filled : partial.filled + length]
        if self._waste is None:
            self._waste = memoryview(bytearray(FRAME_BYTES_MAX))
        return self._waste[:length]

    def _check_start(self, frame: LinkFrame) -> None:
        """Check that a message may begin. Raises LinkProtocolError."""
        kind, stream_id = frame.kind, frame.stream
        from_dialer = kind is not FrameKind.ANSWER
        if stream_id in self._partials or (
            kind is not FrameKind.MESSAGE and from_dialer == self._is_dialer
        ):
            raise _out_of_order(frame)
        if kind is FrameKind.REQUEST or kind is FrameKind.OPEN:
            self._check_new(frame)
        elif kind is FrameKind.ANSWER:
            if stream_id not in self._requests:
                raise _out_of_order(frame)
        elif kind is FrameKind.MESSAGE:
            stream = self._streams.get(stream_id)
            if stream is None or stream.is_over:
                raise _out_of_order(frame)
            if stream.window <= 0:
                raise LinkProtocolError(
                    CloseReason.TOO_MANY, "a message of a stream without credit"
                )
            stream.window -= frame.size + MESSAGE_COST_BYTES
        elif stream_id:
            raise _out_of_order(frame)

    def _check_new(self, frame: LinkFrame) -> None:
        stream_id = frame.stream
        if not stream_id or stream_id in self._requests or stream_id in self._streams:
            raise _out_of_order(frame)
        if frame.kind is FrameKind.REQUEST and len(self._requests) >= self._own.requests_max:
            raise LinkProtocolError(CloseReason.TOO_MANY, "too many requests at once")
        if frame.kind is FrameKind.OPEN and len(self._streams) >= self._own.streams_max:
            raise LinkProtocolError(CloseReason.TOO_MANY, "too many streams at once")

    def _is_too_much(self, frame: LinkFrame) -> bool:
        """Return whether a request is to be answered BUSY."""
        handled_bytes = self._handled_bytes
        return bool(handled_bytes) and handled_bytes + frame.size > self._settings.handled_bytes_max

    def _is_wanted(self, frame: LinkFrame) -> bool:
        if frame.kind is FrameKind.ANSWER:
            return bool(self._requests[frame.stream])
        if frame.kind is FrameKind.MESSAGE:
            return not self._streams[frame.stream].has_failed
        return True

    # -- what comes: frames that are complete

    def take_frame(self, frame: LinkFrame, payload: memoryview) -> None:
        """Process a frame that is complete and undamaged."""
        if self._closed:
            return
        kind = frame.kind
        if kind is FrameKind.MORE or (kind in STARTS and frame.stream in self._partials):
            self._take_fragment(frame)
        else:
            if kind in STARTS and frame.length and (kind is not FrameKind.ANSWER
                                                    or self._requests[frame.stream]):  # fmt: skip
                payload = memoryview(bytes(payload))
            self._takers[kind](frame, payload)

    def _take_fragment(self, frame: LinkFrame) -> None:
        partial = self._partials[frame.stream]
        partial.filled += frame.length
        if partial.filled < partial.first.size:
            return
        del self._partials[frame.stream]
        first = partial.first
        if partial.is_refused:
            self._counters.requests_refused += 1
            self._send(FrameKind.REFUSED, RefusalCode.BUSY, first.stream, BUSY)
            return
        whole = partial.whole
        self._takers[first.kind](first, whole.toreadonly() if whole is not None else NOTHING)

    def _take_request(self, frame: LinkFrame, payload: memoryview) -> None:
        self._counters.requests += 1
        if self._is_too_much(frame):
            self._counters.requests_refused += 1
            self._send(FrameKind.REFUSED, RefusalCode.BUSY, frame.stream, BUSY)
            return
        self._requests[frame.stream] = frame.size
        self._handled_bytes += frame.size
        self.events.append(RequestCame(frame.stream, frame.code, payload))

    def _take_answer(self, frame: LinkFrame, payload: memoryview) -> None:
        if self._requests.pop(frame.stream):
            self.events.append(Answered(frame.stream, payload))

    def _take_one_way(self, frame: LinkFrame, payload: memoryview) -> None:
        self._counters.messages += 1
        self.events.append(MessageCame(frame.code, payload))

    def _take_open(self, frame: LinkFrame, payload: memoryview) -> None:
        self._streams[frame.stream] = self._new_stream()
        self.events.append(StreamOpened(frame.stream, frame.code, payload))

    def _take_message(self, frame: LinkFrame, payload: memoryview) -> None:
        if not self._streams[frame.stream].has_failed:
            self.events.append(StreamMessage(frame.stream, payload))

    def _take_ping(self, frame: LinkFrame, payload: memoryview) -> None:
        if frame.length != HEARTBEAT.size:
            raise _malformed(frame)
        self._pong = bytes(payload)

    def _take_pong(self, frame: LinkFrame, payload: memoryview) -> None:
        if frame.length != HEARTBEAT.size:
            raise _malformed(frame)
        self.events.append(HeartbeatAnswered(HEARTBEAT.unpack(payload)[0]))

    def _take_close(self, frame: LinkFrame, payload: memoryview) -> None:
        self._closed = True
        self.events.append(LinkClosed(frame.code, _text(payload)))

    def _take_refused(self, frame: LinkFrame, payload: memoryview) -> None:
        stream_id = frame.stream
        partial = self._partials.pop(stream_id, None)
        stream = self._streams.get(stream_id)
        if stream is not None:
            self._take_failure(frame, stream, _text(payload))
        elif self._is_dialer:
            if self._requests.pop(stream_id, False):
                self._counters.requests_refused += 1
                self.events.append(RequestRefused(stream_id, frame.code, _text(payload)))
        elif partial is not None and partial.first.kind is FrameKind.OPEN:
            self._send(FrameKind.END, 0, stream_id)  # nobody here ever knew of this stream

    def _take_failure(self, frame: LinkFrame, stream: _OpenStream, text: str) -> None:
        stream.is_over = True
        if stream.queue.ends_with(FrameKind.END):
            stream.has_ended = False  # it is dropped with the messages before it
        dropped = self._outgoing.drop_waiting(stream.queue)
        if not stream.has_failed:
            self.events.append(StreamFailed(frame.stream, frame.code, text))
        if not stream.has_ended:
            stream.has_ended = True
            end = _last(FrameKind.END, frame.stream)
            self._send_last(end, b"", dropped, stream.queue)
        self._drop_if_over(frame.stream, stream)

    def _take_cancel(self, frame: LinkFrame, payload: memoryview) -> None:  # noqa: ARG002
        request_id = frame.stream
        if self._is_dialer:
            raise _out_of_order(frame)
        if self._partials.pop(request_id, None) is not None or self._forget(request_id):
            self._send(FrameKind.REFUSED, RefusalCode.CANCELLED, request_id, b"cancelled")
            self.events.append(RequestCancelled(request_id))
        elif (dropped := self._outgoing.drop_large(request_id)) is not None:
            refusal = _last(FrameKind.REFUSED, request_id, RefusalCode.CANCELLED)
            self._send_last(refusal, b"cancelled", dropped)

    def _take_credit(self, frame: LinkFrame, payload: memoryview) -> None:  # noqa: ARG002
        stream = self._streams.get(frame.stream)
        if stream is None:
            return
        queue = stream.queue
        assert queue.credit is not None, "streams need credit"
        queue.credit += frame.size
        if queue.credit > self._peer.window_bytes:
            raise LinkProtocolError(CloseReason.OUT_OF_ORDER, "more credit than was ever used")
        self._outgoing.advance(queue)
        if self._full_streams:
            self._find_writable()

    def _take_end(self, frame: LinkFrame, payload: memoryview) -> None:  # noqa: ARG002
        stream = self._streams.get(frame.stream)
        if stream is None or stream.is_over:
            raise _out_of_order(frame)
        if self._partials.pop(frame.stream, None) is not None and not stream.has_failed:
            raise _out_of_order(frame)
        stream.is_over = True
        if not stream.has_failed:
            self.events.append(StreamEnded(frame.stream))
        self._drop_if_over(frame.stream, stream)


STARTS: Final = frozenset(
    {FrameKind.REQUEST, FrameKind.ANSWER, FrameKind.ONE_WAY, FrameKind.OPEN, FrameKind.MESSAGE}
)
BUSY: Final = b"too much is being worked on"
NOTHING: Final = memoryview(b"")


def _last(kind: FrameKind, stream_id: int, code: int = 0) -> LinkFrame:
    return LinkFrame(0, kind, code, stream_id, 0)


def _cut(text: str | bytes) -> bytes:
    encoded = text.encode() if isinstance(text, str) else text
    return encoded[:TEXT_BYTES_MAX]


def _text(payload: memoryview) -> str:
    return bytes(payload).decode(errors="replace")


def _out_of_order(frame: LinkFrame) -> LinkProtocolError:
    return LinkProtocolError(
        CloseReason.OUT_OF_ORDER, f"a frame {frame.kind.name} that cannot come now"
    )


def _malformed(frame: LinkFrame) -> LinkProtocolError:
    return LinkProtocolError(
        CloseReason.MALFORMED,
        f"a frame {frame.kind.name} of {frame.length} bytes, of {frame.size}",
    )
