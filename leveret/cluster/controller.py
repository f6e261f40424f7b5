"""The controller: the node that elects leaders, as `plan` says. Any node can be it, at any time.

It has no state: what it decides follows from what the coordinator holds. Two that both think they
are it do no harm, since each write names the entry that it replaces.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from leveret.cluster.entries import (
    CONTROLLER,
    CONTROLLER_EPOCH,
    LIVE,
    NODES,
    SHARD,
    ControllerValue,
    parse_entry,
    shard_path,
)
from leveret.cluster.live_nodes import read_live
from leveret.cluster.numbered_entries import read_numbers
from leveret.cluster.plan import next_entry
from leveret.cluster.refresh import Refresh
from leveret.cluster.shard_entries import ShardEntries
from leveret.ports.coordinator import (
    CheckEntry,
    CoordinatorUnavailableError,
    CreateEntry,
    DeleteEntry,
    SetEntry,
    WriteOutcome,
)

if TYPE_CHECKING:
    from leveret.ports.coordinator import Coordinator, CoordinatorEntry
    from leveret.replication.shard import ShardEntry

__all__ = ["Controller"]

logger = logging.getLogger("leveret.cluster")


class Controller:
    """Stands for election as the controller, and does its work while it is it."""

    def __init__(
        self, coordinator: Coordinator, node: int, incarnation: int, *, replicas: int
    ) -> None:
        self._coordinator = coordinator
        self._value = ControllerValue(node=node, incarnation=incarnation)
        self._replicas = replicas
        self._entries = ShardEntries(coordinator, SHARD)
        self._epoch: CheckEntry | None = None  # of this controller's time
        self._refresh = Refresh(self._control)
        self._unwatches = [
            coordinator.watch(path, self._refresh.ask)
            for path in (CONTROLLER, LIVE, NODES, shard_path(SHARD))
        ]
        self._refresh.ask()

    async def _control(self) -> None:
        """Be the controller if nobody else is, and write what the plan says until it is done."""
        if not await self._holds_entry():
            self._epoch = None
            return
        if self._epoch is None:
            self._epoch = await self._begin()
        live = await read_live(self._coordinator)
        nodes = await read_numbers(self._coordinator, NODES)
        entry = await self._entries.read()
        if entry is None:
            return
        incarnations = {node: value.incarnation for node, value in live.items()}
        planned = next_entry(entry, incarnations, nodes, self._replicas)
        if planned is None:
            return
        if await self._entries.write(planned, (), self._epoch) is WriteOutcome.DONE:
            _log(entry, planned)
        else:
            self._epoch = None  # it may be another one's time by now
        self._refresh.ask()

    async def _holds_entry(self) -> bool:
        """Whether this session has the controller's entry, which it makes if there is none."""
        found = await self._coordinator.read(CONTROLLER)
        if found is None or self._is_of_earlier_life(found):
            removed = [] if found is None else [DeleteEntry(CONTROLLER, found.version)]
            made = CreateEntry(CONTROLLER, self._value.to_bytes(), is_ephemeral=True)
            await self._coordinator.commit(*removed, made)
            found = await self._coordinator.read(CONTROLLER)
        return found is not None and found.owner == self._coordinator.session

    def _is_of_earlier_life(self, found: CoordinatorEntry) -> bool:
        """Whether it is this node's from before it was started again: nobody is behind it."""
        value = parse_entry(ControllerValue, CONTROLLER, found)
        return value.node == self._value.node and value.incarnation < self._value.incarnation

    async def _begin(self) -> CheckEntry:
        """Begin this controller's time: writes of earlier ones fail from now on.

        Raises CoordinatorError.
        """
        found = await self._coordinator.read(CONTROLLER_EPOCH)
        if found is not None:
            moved = SetEntry(CONTROLLER_EPOCH, b"", found.version)
            if await self._coordinator.commit(moved) is WriteOutcome.DONE:
                return CheckEntry(CONTROLLER_EPOCH, found.version + 1)
        raise CoordinatorUnavailableError("another node became the controller at the same time")

    async def close(self) -> None:
        """Do nothing any more; the entry goes with the session."""
        for unwatch in self._unwatches:
            unwatch()
        await self._refresh.close()


def _log(before: ShardEntry, entry: ShardEntry) -> None:
    if entry.epoch != before.epoch:
        logger.warning(
            "node %s is elected to lead, in epoch %d (the in-sync set is %s)",
            *(entry.leader, entry.epoch, sorted(entry.isr)),
        )
    else:
        logger.info("nodes %s are to have a copy", list(entry.replicas))
