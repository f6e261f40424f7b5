"""Frames as pamqp writes them, and counters that tests can read."""

import ctypes

from pamqp import body, commands, frame, header

from leveret.perf.board import Board
from leveret.perf.wire import WorkerCounters

FRAME_BYTES_MAX = 4096


def make_board(workers=1):
    return Board((ctypes.c_uint64 * Board.words(workers))())


def make_counters(board):
    return WorkerCounters(board.row(0))


def content(payload, channel=1, part_bytes=FRAME_BYTES_MAX - 8):
    parts = [payload[at : at + part_bytes] for at in range(0, len(payload), part_bytes)]
    properties = commands.Basic.Properties(content_type="text/plain", delivery_mode=2)
    return frame.marshal(header.ContentHeader(0, len(payload), properties), channel) + b"".join(
        frame.marshal(body.ContentBody(part), channel) for part in parts
    )


def delivery(tag, payload, *, consumer_tag="0", redelivered=False, channel=1):
    method = commands.Basic.Deliver(consumer_tag, tag, redelivered, "exchange", "some.key")
    return frame.marshal(method, channel) + content(payload, channel)


def frames_of(data):
    """Every frame in `data` as (channel, value)."""
    found = []
    while data:
        used, channel, value = frame.unmarshal(data)
        found.append((channel, value))
        data = data[used:]
    return found


def feed_in_parts(link, data, cuts):
    for first, last in zip([0, *cuts], [*cuts, len(data)], strict=True):
        if first < last:
            link.feed(data[first:last])
