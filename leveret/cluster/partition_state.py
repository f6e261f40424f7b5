"""State of a partition that all nodes agree on; the coordinator keeps it, one version at a time."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import NamedTuple, Self

__all__ = ["Member", "PartitionState", "Registration"]


class Member(NamedTuple):
    """A node with the data that it has.

    Its `incarnation` grows with each start that may have lost some: after a machine has failed, not
    after the process was killed, since what that had written was in the page cache.
    """

    node: int
    incarnation: int


class Registration(NamedTuple):
    """A node that is there. Each start of its process has a greater `session`."""

    incarnation: int
    session: int


@dataclass(frozen=True, slots=True)
class PartitionState:
    """Replicas of a partition, and its leader. Each change has the next `version`.

    `replicas` are nodes, the preferred leader first. `in_sync` are those that have everything that
    was committed; the leader is one of them, in its session `leader_session`. Nobody leads (None)
    while none of them is there. The `epoch` grows with each change of the leader or its session.

    `side_logs` are the names of the logs that belong to the partition, such as its retry topic:
    all of this holds for them as well, and who is in sync has all of them.
    """

    replicas: tuple[int, ...]
    in_sync: frozenset[Member]
    leader: int | None = None
    leader_session: int = 0
    epoch: int = 0
    version: int = 0
    side_logs: frozenset[str] = frozenset()

    @property
    def in_sync_nodes(self) -> frozenset[int]:
        """Nodes of the in-sync set."""
        return frozenset(each.node for each in self.in_sync)

    def to_bytes(self) -> bytes:
        """Return the state as the coordinator has it."""
        fields: dict[str, object] = {
            "replicas": self.replicas,
            "in_sync": sorted(self.in_sync),
            "leader": self.leader,
            "leader_session": self.leader_session,
            "epoch": self.epoch,
            "version": self.version,
        }
        if self.side_logs:
            fields["side_logs"] = sorted(self.side_logs)
        return json.dumps(fields, separators=(",", ":")).encode()

    @classmethod
    def from_bytes(cls, value: bytes) -> Self:
        """Return a state that was written down. Raises ValueError for something else."""
        try:
            told = json.loads(value)
            return cls(
                replicas=tuple(map(int, told["replicas"])),
                in_sync=frozenset(Member(int(node), int(each)) for node, each in told["in_sync"]),
                leader=None if told["leader"] is None else int(told["leader"]),
                leader_session=int(told["leader_session"]),
                epoch=int(told["epoch"]),
                version=int(told["version"]),
                side_logs=frozenset(map(str, told.get("side_logs", ()))),
            )
        except (KeyError, TypeError, ValueError, RecursionError) as error:
            raise ValueError(f"no state of a partition: {value[:100]!r} ({error})") from error
