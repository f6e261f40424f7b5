"""Moves of partitions to other nodes: what the coordinator keeps of each, and which are to be made.

A move adds replicas before it removes others, so that a partition never has fewer of them than
before. Plain functions of the partitions' states, and of the racks of the nodes to choose from.
"""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, Self

from leveret.cluster.assignment import NodeLoad

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from leveret.cluster.partition_state import PartitionState

__all__ = ["PartitionMove", "plan_balance", "plan_departure", "replacement"]


class PartitionMove(NamedTuple):
    """A move of a partition: its replicas afterwards and before, the preferred leader first."""

    target: tuple[int, ...]
    origin: tuple[int, ...]

    def to_bytes(self) -> bytes:
        """Return the move as the coordinator has it."""
        return json.dumps(self._asdict(), separators=(",", ":")).encode()

    @classmethod
    def from_bytes(cls, value: bytes) -> Self:
        """Return a move that was written down. Raises ValueError for something else."""
        try:
            told = json.loads(value)
            target, origin = (tuple(map(int, told[name])) for name in ("target", "origin"))
        except (KeyError, TypeError, ValueError, RecursionError) as error:
            raise ValueError(f"no move of a partition: {value[:100]!r} ({error})") from error
        if not target or len(set(target)) < len(target):
            raise ValueError(f"no move of a partition: {value[:100]!r}")
        return cls(target, origin)


def replacement(
    replicas: tuple[int, ...], node: int, racks: Mapping[int, str], load: NodeLoad
) -> tuple[int, ...] | None:
    """Return the replicas with another node in the place of one; None if there is no other.

    It is of a rack that has few of them, and has few replicas itself: `load` counts it.
    """
    others = [each for each in replicas if each != node]
    in_rack = Counter(racks[each] for each in others if each in racks)
    found = min(
        (each for each in racks if each not in replicas),
        key=lambda each: (in_rack[racks[each]], load.replicas[each], each),
        default=None,
    )
    if found is None:
        return None
    load.replicas[node] -= 1
    load.replicas[found] += 1
    if replicas[0] == node:
        load.leaders[node] -= 1
        load.leaders[found] += 1
    return tuple(found if each == node else each for each in replicas)


def plan_departure(
    states: Mapping[str, PartitionState], node: int, racks: Mapping[int, str]
) -> dict[str, PartitionMove]:
    """Return the moves after which a node has no replicas, as far as there are others for them.

    `racks` are those of the nodes to choose from, `node` not among them.
    """
    load = NodeLoad.of(states.values())
    moves = {}
    for key, state in states.items():
        if node in state.replicas:
            target = replacement(state.replicas, node, racks, load)
            if target is not None:
                moves[key] = PartitionMove(target, state.replicas)
    return moves


@dataclass(slots=True)
class Balance:
    """Replicas of all partitions as they are to be, and what each node has of them."""

    replicas: dict[str, tuple[int, ...]]
    racks: Mapping[int, str]
    load: NodeLoad

    def spreads(self, replicas: tuple[int, ...]) -> int:
        """Return over how many racks replicas are spread."""
        return len({self.racks.get(each, "") for each in replicas})

    def complete(self, key: str, count: int, nodes: Iterable[int]) -> None:
        """Add replicas on some nodes until a partition has so many."""
        replicas = self.replicas[key]
        while len(replicas) < count:
            in_rack = Counter(self.racks[each] for each in replicas if each in self.racks)
            found = min(
                (each for each in nodes if each not in replicas and each in self.racks),
                key=lambda each: (in_rack[self.racks[each]], self.load.replicas[each], each),
                default=None,
            )
            if found is None:
                return
            replicas = self.replicas[key] = (*replicas, found)
            self.load.replicas[found] += 1

    def move(self, low: int, high: int) -> bool:
        """Move one replica from the node `high` to `low`; False if none may move."""
        for key, replicas in self.replicas.items():
            if high not in replicas or low in replicas:
                continue
            changed = tuple(low if each == high else each for each in replicas)
            if self.spreads(changed) < self.spreads(replicas):
                continue
            self.load.replicas[high] -= 1
            self.load.replicas[low] += 1
            if replicas[0] == high:
                self.load.leaders[high] -= 1
                self.load.leaders[low] += 1
            self.replicas[key] = changed
            return True
        return False

    def lead(self, low: int, high: int) -> bool:
        """Have the node `low` lead a partition that `high` leads; False if there is none."""
        for key, replicas in self.replicas.items():
            if replicas[0] == high and low in replicas:
                self.replicas[key] = (low, *(each for each in replicas if each != low))
                self.load.leaders[high] -= 1
                self.load.leaders[low] += 1
                return True
        return False


def plan_balance(
    states: Mapping[str, PartitionState],
    racks: Mapping[int, str],
    wanted: Mapping[str, int],
    *,
    onto: int | None = None,
) -> dict[str, PartitionMove]:
    """Return the moves after which all nodes have as many replicas, and lead as many partitions.

    Partitions that have fewer replicas than are `wanted`, because there were fewer nodes, get more.
    With `onto` replicas come to that node alone. `racks` are those of the nodes that count; no
    partition is spread over fewer of them afterwards.
    """
    balance = Balance(
        {key: state.replicas for key, state in states.items()}, racks, NodeLoad.of(states.values())
    )
    for key, count in wanted.items():
        balance.complete(key, count, racks if onto is None else [onto])
    for counts, step in (
        (balance.load.replicas, balance.move),
        (balance.load.leaders, balance.lead),
    ):
        while _level(counts, step, racks, onto):
            pass
    return {
        key: PartitionMove(replicas, states[key].replicas)
        for key, replicas in balance.replicas.items()
        if replicas != states[key].replicas
    }


def _level(
    counts: Counter[int],
    step: Callable[[int, int], bool],
    racks: Mapping[int, str],
    onto: int | None,
) -> bool:
    """Take one step towards equal counts; False if none is left."""
    by_count = sorted(racks, key=lambda node: (counts[node], node))
    for low in by_count if onto is None else [onto]:
        for high in reversed(by_count):
            if counts[high] - counts[low] < 2:
                break
            if step(low, high):
                return True
    return False
