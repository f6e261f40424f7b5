"""Nodes and moves as the coordinator has them."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from leveret.cluster.moves import PartitionMove
from leveret.ports.coordination import MOVES_PREFIX, draining_nodes

if TYPE_CHECKING:
    from collections.abc import Iterator

    from leveret.ports.coordination import Coordinator

__all__ = ["each_move", "known_moves", "known_racks", "racks_for_new"]

logger = logging.getLogger(__name__)


def known_moves(coordinator: Coordinator) -> dict[str, PartitionMove]:
    """Return the moves that are not done, by the keys of the logs."""
    return dict(each_move(coordinator))


def each_move(coordinator: Coordinator) -> Iterator[tuple[str, PartitionMove]]:
    """Yield the moves that are not done, parsed one by one: there may be ten thousands."""
    entries = coordinator.entries
    for name in list(entries.keys(MOVES_PREFIX)):
        entry = entries.get(name)
        if entry is None:  # it was done meanwhile
            continue
        try:
            yield name.removeprefix(MOVES_PREFIX), PartitionMove.from_bytes(entry.value)
        except ValueError as error:
            logger.warning("%s is not carried out: %s", name, error)


def known_racks(coordinator: Coordinator) -> dict[int, str]:
    """Return the racks of the nodes that may be given replicas."""
    drained = draining_nodes(coordinator.entries)
    return {each.node: each.rack for each in coordinator.nodes.values() if each.node not in drained}


def racks_for_new(coordinator: Coordinator) -> dict[int, str]:
    """Return the racks of nodes for new partitions: if all are draining, these must have them."""
    return known_racks(coordinator) or {each.node: each.rack for each in coordinator.nodes.values()}
