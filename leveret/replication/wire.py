"""Messages of a replication channel.

    from a follower: little-endian
     0  u8   kind: 1 fetch, 2 report (how far it has come since; it waits for its answer already)
     1  u16  length of the partition's key
     3  u32  epoch, u64 end, u32 last epoch, u64 durable, u64 position that is durable
    35  u64  position in the leader's stream; all ones: none
    43  u64  committed, as far as it knows
    51       the key

    to a follower
     0  u8   kind: 1 records, 2 diverged, 3 refused
     1  u16  length of the partition's key
     3  u32  epoch
     7       the key, then
             records:  u64 first offset, u64 committed, u64 position, u64 kept from; both may be all
                       ones: none; then batches
             diverged: u64 end and u32 last epoch of the request, u32 epoch and u64 end up to which
                       the logs may agree

The node of a follower and its incarnation are told when the channel is opened: u32, u64.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

from leveret.cluster.partition_state import Member
from leveret.cluster.replication.messages import Answer, Diverged, Fetch, Records, Refused
from leveret.errors import LeveretError
from leveret.ports.epochs import EpochEnd
from leveret.ports.replication import StreamRun

__all__ = [
    "ChannelMessageError",
    "FollowerMessage",
    "LeaderMessage",
    "pack_answer",
    "pack_fetch",
    "pack_follower",
    "parse_answer",
    "parse_fetch",
    "parse_follower",
]

FETCH, REPORT = 1, 2
RECORDS, DIVERGED, REFUSED = 1, 2, 3
FOLLOWER = struct.Struct("<IQ")
REQUEST = struct.Struct("<BHIQIQQQQ")
FRONT = struct.Struct("<BHI")
RUN = struct.Struct("<QQQQ")
AGREED = struct.Struct("<QIIQ")
NONE = (1 << 64) - 1
KEY_BYTES_MAX = 4096


class ChannelMessageError(LeveretError):
    """The other node has sent what makes no sense."""


class FollowerMessage(NamedTuple):
    """A follower's request for a partition; without `wants_answer` just a report.

    It wants what follows `position`, or to know that more than `committed` is.
    """

    key: str
    request: Fetch
    position: int | None
    committed: int
    wants_answer: bool


class LeaderMessage(NamedTuple):
    """A leader's answer; with records the run of its stream."""

    key: str
    answer: Answer
    run: StreamRun | None


def pack_follower(follower: Member) -> bytes:
    """Return what a channel is opened with."""
    return FOLLOWER.pack(*follower)


def parse_follower(payload: memoryview) -> Member:
    """Return who opens a channel. Raises ChannelMessageError."""
    try:
        return Member(*FOLLOWER.unpack(payload))
    except struct.error as error:
        raise ChannelMessageError(
            f"a replication channel is opened without a follower: {error}"
        ) from error


def pack_fetch(message: FollowerMessage) -> bytes:
    """Return a follower's message."""
    key, request = message.key.encode(), message.request
    front = REQUEST.pack(
        FETCH if message.wants_answer else REPORT,
        len(key),
        request.epoch,
        request.end,
        request.last_epoch,
        request.durable,
        request.stream_durable,
        NONE if message.position is None else message.position,
        message.committed,
    )
    return front + key


def parse_fetch(payload: memoryview, follower: Member) -> FollowerMessage:
    """Return a follower's message. Raises ChannelMessageError."""
    try:
        kind, length, epoch, end, *numbers = REQUEST.unpack_from(payload)
        last_epoch, durable, stream, position, committed = numbers
        if kind not in (FETCH, REPORT) or len(payload) != REQUEST.size + length:
            raise ChannelMessageError(
                f"a follower's message of kind {kind} has {len(payload)} bytes"
            )
        key = _key(payload, REQUEST.size, length)
    except struct.error as error:
        raise ChannelMessageError(f"a follower's message is too short: {error}") from error
    request = Fetch(follower, epoch, end, last_epoch, durable, stream)
    return FollowerMessage(key, request, _optional(position), committed, kind == FETCH)


def pack_answer(message: LeaderMessage) -> list[bytes | memoryview]:
    """Return a leader's message."""
    key, answer, run = message.key.encode(), message.answer, message.run
    if isinstance(answer, Records):
        assert run is not None, "records are answered with what there is of them"
        front = FRONT.pack(RECORDS, len(key), answer.epoch) + key
        position = NONE if run.position is None else run.position
        kept_from = NONE if run.kept_from is None else run.kept_from
        front += RUN.pack(answer.first, answer.committed, position, kept_from)
        return [front, memoryview(run.data)]
    if isinstance(answer, Diverged):
        front = FRONT.pack(DIVERGED, len(key), answer.epoch) + key
        return [front + AGREED.pack(answer.end, answer.last_epoch, *answer.agrees_until)]
    return [FRONT.pack(REFUSED, len(key), answer.epoch) + key]


def parse_answer(payload: memoryview) -> LeaderMessage:
    """Return a leader's message. Raises ChannelMessageError."""
    try:
        kind, length, epoch = FRONT.unpack_from(payload)
        key = _key(payload, FRONT.size, length)
        at = FRONT.size + length
        if kind == RECORDS:
            first, committed, position, kept_from = RUN.unpack_from(payload, at)
            run = StreamRun(payload[at + RUN.size :], _optional(position), _optional(kept_from))
            return LeaderMessage(key, Records(epoch, first, committed), run)
        if kind == DIVERGED:
            end, last_epoch, *agreed = AGREED.unpack_from(payload, at)
            return LeaderMessage(key, Diverged(epoch, end, last_epoch, EpochEnd(*agreed)), None)
        if kind == REFUSED:
            return LeaderMessage(key, Refused(epoch), None)
    except struct.error as error:
        raise ChannelMessageError(f"a leader's message is too short: {error}") from error
    raise ChannelMessageError(f"a leader's message has kind {kind}")


def _optional(number: int) -> int | None:
    return None if number == NONE else number


def _key(payload: memoryview, at: int, length: int) -> str:
    if length > KEY_BYTES_MAX:
        raise ChannelMessageError(f"a partition's key has {length} bytes")
    try:
        return str(payload[at : at + length], "utf-8")
    except UnicodeDecodeError as error:
        raise ChannelMessageError(f"a partition's key is no text: {error}") from error
