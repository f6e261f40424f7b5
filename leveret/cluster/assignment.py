"""Assignment of new partitions to nodes: evenly, and over as many racks as there are."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from leveret.cluster.partition_state import PartitionState

__all__ = ["NodeLoad", "assign"]


@dataclass(slots=True)
class NodeLoad:
    """Replicas that each node has, and those of them that shall lead; `assign` adds to it."""

    replicas: Counter[int] = field(default_factory=Counter)
    leaders: Counter[int] = field(default_factory=Counter)

    @classmethod
    def of(cls, states: Iterable[PartitionState]) -> NodeLoad:
        """Return the load of all partitions; the first replica of each is its preferred leader."""
        load = cls()
        for state in states:
            load.add(state.replicas)
        return load

    def add(self, replicas: tuple[int, ...]) -> None:
        """Count one partition more."""
        self.replicas.update(replicas)
        self.leaders[replicas[0]] += 1


def assign(
    partitions: int, replicas: int, racks: Mapping[int, str], load: NodeLoad
) -> list[tuple[int, ...]]:
    """Return the replicas of new partitions, the preferred leader of each first.

    `racks` are those of the nodes to choose from, which must be one at least. No two replicas of a
    partition are on one node: with fewer nodes than `replicas` each node gets one. Raises
    ValueError.
    """
    if not racks or replicas < 1:
        raise ValueError(f"{replicas} replicas on {len(racks)} nodes")
    found = []
    for _ in range(partitions):
        chosen = _choose(min(replicas, len(racks)), racks, load)
        load.add(chosen)
        found.append(chosen)
    return found


def _choose(count: int, racks: Mapping[int, str], load: NodeLoad) -> tuple[int, ...]:
    leader = min(racks, key=lambda node: (load.leaders[node], load.replicas[node], node))
    chosen = [leader]
    in_rack = Counter([racks[leader]])
    while len(chosen) < count:
        node = min(
            (node for node in racks if node not in chosen),
            key=lambda node: (in_rack[racks[node]], load.replicas[node], node),
        )
        chosen.append(node)
        in_rack[racks[node]] += 1
    return tuple(chosen)
