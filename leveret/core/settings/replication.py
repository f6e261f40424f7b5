"""Replicas of a queue's messages: how many, what a confirm waits for, how many must be in sync.

Only a cluster has replicas: on a node by itself these settings are kept and shown, and change
nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Mapping

    from leveret.ports.definitions import Arguments

__all__ = [
    "ACKS",
    "ALSO_REPLICAS",
    "IN_SYNC_MIN",
    "REPLICAS",
    "UNREPLICATED",
    "Acks",
    "Replication",
    "replicas_of",
    "replication_of",
]

REPLICAS: Final = "replicas"
ACKS: Final = "acks"
IN_SYNC_MIN: Final = "min-isr"
# RabbitMQ's names of the number of replicas: arguments with `x-`, and settings of policies.
ALSO_REPLICAS: Final = ("quorum-initial-group-size", "target-group-size", "initial-cluster-size")


class Acks(StrEnum):
    """Events that a confirm may wait for."""

    NONE = "none"  # that the leader has taken the message
    LEADER = "leader"  # that it is as durable at the leader as its queue promises
    ALL = "all"  # that all replicas in sync have it so


ACKS_MIN: Final = {Acks.NONE: 0, Acks.LEADER: 1, Acks.ALL: None}


@dataclass(frozen=True, slots=True)
class Replication:
    """Replicas of each partition of a queue, on as many nodes.

    `acks` may also be a number of replicas that must have a message, the leader's included. While
    fewer than `in_sync_min` replicas are in sync, publishes are refused.
    """

    replicas: int
    acks: Acks | int
    in_sync_min: int

    @property
    def acks_min(self) -> int | None:
        """Number of replicas that a confirm waits for; None: all that are in sync."""
        return self.acks if isinstance(self.acks, int) else ACKS_MIN[self.acks]


UNREPLICATED: Final = Replication(1, Acks.ALL, 1)
# As in Kafka's guides: any one of three nodes may fail, without loss and without a pause.
REPLICATED: Final = Replication(3, Acks.ALL, 2)


def replication_of(
    arguments: Arguments, policy: Mapping[str, Any], *, survives: bool = True
) -> Replication:
    """Return the replication of a queue with these arguments, and the settings of its policy.

    The queue's own arguments override its policy. Numbers of replicas that `acks` and `in_sync_min`
    ask for count as all of them if there are fewer: a policy may state one, the arguments another.
    A queue that does not survive its node, because it is exclusive or not durable (`survives` is
    false), has no other replicas.
    """
    if not survives:
        return UNREPLICATED
    default = _default_of(arguments)
    replicas = _stated_replicas(arguments, policy) or default.replicas
    acks = _acks(arguments.get(f"x-{ACKS}", policy.get(ACKS))) or default.acks
    in_sync_min = _count(arguments.get(f"x-{IN_SYNC_MIN}", policy.get(IN_SYNC_MIN)))
    found = Replication(
        replicas,
        min(acks, replicas) if isinstance(acks, int) else acks,
        min(in_sync_min or default.in_sync_min, replicas),
    )
    return default if found == default else found  # one object for most queues


def replicas_of(arguments: Arguments) -> int:
    """Return the number of replicas that arguments state, or that their queue's type has."""
    return _stated_replicas(arguments, {}) or _default_of(arguments).replicas


def _default_of(arguments: Arguments) -> Replication:
    return REPLICATED if arguments.get("x-queue-type") in ("quorum", "stream") else UNREPLICATED


def _stated_replicas(arguments: Arguments, policy: Mapping[str, Any]) -> int | None:
    stated = [arguments.get(f"x-{key}") for key in (REPLICAS, *ALSO_REPLICAS)]
    stated += [policy.get(key) for key in (REPLICAS, *ALSO_REPLICAS)]
    return next(filter(None, map(_count, stated)), None)


def _acks(value: object) -> Acks | int | None:
    return Acks(value) if isinstance(value, str) and value in set(Acks) else _count(value)


def _count(value: object) -> int | None:
    """Return a number of replicas; None for what an earlier release stored without knowing it."""
    return int(value) if isinstance(value, int) and value is not True and value > 0 else None
