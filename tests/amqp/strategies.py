"""Hypothesis strategies for what a client sends once its channels are open, and for spoiling it.

A conversation is a list of frames, each built by pamqp; `wire()` joins them. Mutators take the
bytes of one frame and return what a broken or hostile peer could send instead.
"""

import itertools
import struct
from datetime import UTC, datetime

from hypothesis import strategies as st
from pamqp import body, commands, frame, header

CHANNELS = (1, 2, 7)
FRAME_MAX = 4096
FRAME_MAX_LARGE = 131072
# The test's route table (test_frames.py) gives each of these a meaning of its own.
EXCHANGES = ("", "fanout", "nowhere", "headers", "missing")
ROUTING_KEYS = ("", "a", "b", "a.b.c", "forbidden", "ключ", "x" * 255)

short_strings = st.sampled_from(["", "text/plain", "é", "x" * 255]) | st.text(max_size=40).filter(
    lambda text: len(text.encode()) <= 255
)
header_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63 - 1)
    | st.text(max_size=30)
    | st.floats(allow_nan=False, width=32)
    | st.binary(max_size=30).map(bytearray),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=20), inner, max_size=3)
    ),
    max_leaves=8,
)
moments = st.integers(0, 2**32 - 1).map(lambda seconds: datetime.fromtimestamp(seconds, tz=UTC))
PROPERTIES = {
    "content_type": short_strings,
    "content_encoding": short_strings,
    "headers": st.dictionaries(st.text(max_size=20), header_values, max_size=4),
    "delivery_mode": st.integers(0, 255),
    "priority": st.integers(0, 255),
    "correlation_id": short_strings,
    "reply_to": short_strings,
    "expiration": st.integers(0, 2**32 - 1).map(str),
    "message_id": short_strings,
    "timestamp": moments,
    "message_type": short_strings,
    "user_id": short_strings,
    "app_id": short_strings,
    "cluster_id": short_strings,
}


@st.composite
def properties(draw):
    """Any subset of the fourteen."""
    chosen = commands.Basic.Properties()
    for name in sorted(draw(st.sets(st.sampled_from(sorted(PROPERTIES))))):
        setattr(chosen, name, draw(PROPERTIES[name]))
    return chosen


def _repeat(size: int, seed: bytes) -> bytes:
    return (seed * (size // len(seed) + 1))[:size]


bodies = st.builds(
    _repeat,
    st.integers(0, 40) | st.sampled_from([FRAME_MAX - 9, FRAME_MAX - 8, FRAME_MAX - 7, 300_000]),
    # 0xCE is the frame end; 1, 2, 3 and 8 look like frame types
    st.binary(min_size=1, max_size=3) | st.sampled_from([b"\xce", b"\x01\x00\x01", b"\x03\xce"]),
)


@st.composite
def pieces(draw, content: bytes, size_max: int):
    """`content` cut into parts of at most `size_max` bytes, empty ones among them."""
    cuts = draw(st.lists(st.integers(0, len(content)), max_size=4))
    edges = sorted({0, len(content), *cuts, *range(0, len(content), size_max)})
    parts = [content[start:stop] for start, stop in itertools.pairwise(edges)]
    if parts and draw(st.booleans()):
        parts.insert(draw(st.integers(0, len(parts) - 1)), b"")
    return parts


@st.composite
def publishes(draw, channel: int, frame_max: int = FRAME_MAX):
    """The frames of one message."""
    content = draw(bodies)
    method = commands.Basic.Publish(
        exchange=draw(st.sampled_from(EXCHANGES)),
        routing_key=draw(st.sampled_from(ROUTING_KEYS)),
        mandatory=draw(st.booleans()),
    )
    head = header.ContentHeader(body_size=len(content), properties=draw(properties()))
    parts = draw(pieces(content, frame_max - 8))
    return [
        frame.marshal(method, channel),
        frame.marshal(head, channel),
        *(frame.marshal(body.ContentBody(part), channel) for part in parts),
    ]


tags = st.integers(0, 5) | st.sampled_from([2**32, 2**63 - 2, 2**63 - 1])


@st.composite
def acknowledgements(draw, channel: int):
    """A run of acks, nacks and rejects, often of tags that follow each other."""
    first = draw(tags)
    kind = draw(st.integers(0, 2))
    frames = []
    for step in range(draw(st.integers(1, 5))):
        tag = min(first + step, 2**63 - 1)
        multiple, requeue = draw(st.booleans()), draw(st.booleans())
        method = [
            commands.Basic.Ack(tag, multiple),
            commands.Basic.Nack(tag, multiple, requeue),
            commands.Basic.Reject(tag, requeue),
        ][kind]
        frames.append(frame.marshal(method, channel))
    return frames


COLD = (
    commands.Basic.Qos(0, 100, False),
    commands.Basic.Get(queue="q"),
    commands.Basic.Cancel("tag"),
    commands.Basic.Recover(True),
    commands.Queue.Declare(queue="jobs", durable=True, arguments={"x-queue-type": "quorum"}),
    commands.Queue.Bind(queue="jobs", exchange="fanout", routing_key="a"),
    commands.Exchange.Declare(exchange="e", exchange_type="topic"),
    commands.Basic.Consume(queue="jobs", consumer_tag="c", arguments={"x-priority": 3}),
    commands.Confirm.Select(),
    commands.Tx.Commit(),
)


def cold_methods(channel: int):
    """One method that the reader only hands on."""
    return st.sampled_from(COLD).map(lambda method: [frame.marshal(method, channel)])


def channel_frames(channel: int):
    """Draw the frames of one channel, in order."""
    activity = publishes(channel) | acknowledgements(channel) | cold_methods(channel)
    return st.lists(activity, max_size=6).map(lambda groups: list(itertools.chain(*groups)))


HEARTBEAT = b"\x08\x00\x00\x00\x00\x00\x00\xce"


@st.composite
def conversations(draw, channels: tuple[int, ...] = CHANNELS):
    """The frames of all channels, interleaved, with heartbeats and connection methods between."""
    queues = [draw(channel_frames(channel)) for channel in channels]
    queues.append([HEARTBEAT] * draw(st.integers(0, 2)))
    queues.append([frame.marshal(commands.Connection.UpdateSecret("s", "r"), 0)])
    pattern = draw(st.lists(st.integers(0, len(queues) - 1), min_size=1, max_size=12))
    frames = []
    for turn in itertools.cycle(pattern):
        if not queues[turn]:
            turn = next((index for index, queue in enumerate(queues) if queue), -1)  # noqa: PLW2901
            if turn < 0:
                return frames
        frames.append(queues[turn].pop(0))
    return frames


def wire(frames: list[bytes]) -> bytes:
    """The conversation as one byte string."""
    return b"".join(frames)


@st.composite
def cuts(draw, data: bytes):
    """`data` as reads of a socket: whole, byte by byte (its start), or anywhere."""
    if draw(st.booleans()):
        edge = draw(st.integers(0, min(len(data), 200)))
        return [data[index : index + 1] for index in range(edge)] + [data[edge:]]
    edges = sorted({0, len(data), *draw(st.lists(st.integers(0, len(data)), max_size=10))})
    return [data[start:stop] for start, stop in itertools.pairwise(edges)]


# Mutators: each spoils one frame of a conversation in one way.


def _set(offset: int, layout: str, values):
    def spoil(draw, target: bytes) -> bytes:
        spoilt = bytearray(target)
        if len(spoilt) >= offset + struct.calcsize(layout):
            struct.pack_into(layout, spoilt, offset, draw(st.sampled_from(values)))
        return bytes(spoilt)

    return spoil


def _flip(draw, target: bytes) -> bytes:
    spoilt = bytearray(target)
    position = draw(st.integers(0, min(len(target) - 1, 64)))
    spoilt[position] = draw(st.integers(0, 255))
    return bytes(spoilt)


def _cut(draw, target: bytes) -> bytes:
    return target[: draw(st.integers(0, len(target)))]


def _insert(draw, target: bytes) -> bytes:
    position = draw(st.integers(0, len(target)))
    return target[:position] + draw(st.binary(max_size=20)) + target[position:]


def _shorten(draw, target: bytes) -> bytes:
    """A whole frame with less in it than there should be."""
    payload = target[7:-1][: draw(st.integers(0, max(len(target) - 8, 0)))]
    return target[:3] + struct.pack(">I", len(payload)) + payload + b"\xce"


def _lengthen(draw, target: bytes) -> bytes:
    payload = target[7:-1] + draw(st.binary(min_size=1, max_size=9))
    return target[:3] + struct.pack(">I", len(payload)) + payload + b"\xce"


MUTATORS = {
    "byte flipped": _flip,
    "cut short": _cut,
    "bytes inserted": _insert,
    "payload shortened": _shorten,
    "payload lengthened": _lengthen,
    "frame repeated": lambda draw, target: target * draw(st.integers(0, 3)),
    "frame end gone": lambda draw, target: (
        target[:-1] + draw(st.sampled_from([b"", b"\0", b"\xcd"]))
    ),
    "frame type": _set(0, "B", [0, 1, 2, 3, 4, 8, 65, 255]),
    "channel": _set(1, ">H", [0, 1, 2, 3, 7, 255, 2047, 65535]),
    "frame size": _set(
        3, ">I", [0, 1, 3, 4, 12, 14, FRAME_MAX - 8, FRAME_MAX - 7, 2**31, 2**32 - 1]
    ),
    "class": _set(7, ">H", [0, 10, 20, 60, 61, 65535]),
    "method or weight": _set(9, ">H", [0, 1, 40, 80, 90, 120, 65535]),
    "body size": _set(11, ">Q", [0, 1, 39, 2**24, 2**24 + 1, 2**32, 2**63, 2**64 - 8, 2**64 - 1]),
    "property flags": _set(19, ">H", [0, 1, 2, 3, 0x2000, 0x8000, 0xFFFC, 0xFFFF]),
    "first length": _set(13, "B", [0, 1, 127, 255]),
    "table size": _set(21, ">I", [0, 1, 2**31, 2**32 - 4, 2**32 - 1]),
}


@st.composite
def hostile_wire(draw):
    """A conversation with a few frames spoilt, or plain noise."""
    if draw(st.integers(0, 19)) == 0:
        return draw(st.binary(max_size=300))
    frames = draw(conversations())
    for _ in range(draw(st.integers(1, 3))):
        index = draw(st.integers(0, len(frames) - 1))
        if frames[index]:
            frames[index] = MUTATORS[draw(st.sampled_from(sorted(MUTATORS)))](draw, frames[index])
    return wire(frames)
