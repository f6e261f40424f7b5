"""Messages between the replicas of a partition."""

from __future__ import annotations

from dataclasses import dataclass

from leveret.cluster.partition_state import Member
from leveret.ports.epochs import EpochEnd

__all__ = ["Answer", "Diverged", "Fetch", "Records", "Refused"]


@dataclass(frozen=True, slots=True)
class Fetch:
    """A follower's request for what follows its log, and its report of how far it has come.

    `last_epoch` is that of its last record, `durable` where what it will keep after a crash ends.
    `stream_durable` says the same of the leader's stream, in which each record is followed by what
    becomes of it; its positions are those of one leader.
    """

    follower: Member
    epoch: int
    end: int
    last_epoch: int
    durable: int
    stream_durable: int = 0


@dataclass(frozen=True, slots=True)
class Records:
    """Answer to a follower whose log is a prefix of the leader's: batches from `first` on."""

    epoch: int
    first: int
    committed: int


@dataclass(frozen=True, slots=True)
class Diverged:
    """Answer to a follower that has records which the leader has not: where the logs may agree.

    `end` and `last_epoch` are those of the request: an answer that comes late, when the follower
    has truncated already and gone on, must not be followed once more.
    """

    epoch: int
    end: int
    last_epoch: int
    agrees_until: EpochEnd


@dataclass(frozen=True, slots=True)
class Refused:
    """Answer to a follower of another epoch than the leader's, which is `epoch`."""

    epoch: int


Answer = Records | Diverged | Refused
