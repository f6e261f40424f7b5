"""The controller's care for where partitions are: moves, preferred leaders, nodes that stay away.

Moves are at the coordinator, so that another controller goes on with them. Each goes three steps:
the nodes of the target become replicas beside those that are it, which then catch up; one of them
leads, if the leader is not to stay; the others are replicas no more.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from leveret.cluster.controller import hand_over, reassign, settle_move
from leveret.cluster.moves import plan_departure
from leveret.clustering.operating.states import known_moves, known_racks
from leveret.ports.coordination import (
    DIRECTORIES_PREFIX,
    MOVES_PREFIX,
    ConflictError,
    CoordinatorError,
    KeyChange,
    draining_nodes,
)
from leveret.replication.replicator import PARTITIONS_PREFIX, registrations

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Mapping

    from leveret.cluster.moves import PartitionMove
    from leveret.cluster.partition_state import PartitionState
    from leveret.clustering.operating.hand_overs import HandOvers
    from leveret.ports.coordination import Coordinator
    from leveret.replication.partition_table import PartitionTable

__all__ = ["MoverSettings", "PartitionMover"]

logger = logging.getLogger(__name__)

CHECK_SECONDS: Final = 0.5
HAND_OVERS_AT_ONCE: Final = 5
KEYS_AT_ONCE: Final = 100  # of one write: it is far below a znode's bound


@dataclass(frozen=True, slots=True)
class MoverSettings:
    """How many partitions move at a time, and after how long what is done by itself.

    A partition's preferred leader leads it again once it has been in sync for
    `preferred_seconds`. Replicas of a node that has been away for `replace_seconds` go to others;
    0: never.
    """

    moves_at_once: int = 5
    preferred_seconds: float = 10.0
    replace_seconds: float = 600.0


class PartitionMover:
    """Does its work while this node is the controller."""

    def __init__(
        self,
        coordinator: Coordinator,
        table: PartitionTable,
        hand_overs: HandOvers,
        settings: MoverSettings,
        spawn: Callable[[Coroutine[object, object, None]], asyncio.Task[None]],
    ) -> None:
        """`spawn` starts a task in the group that owns the node's tasks."""
        self._coordinator = coordinator
        self._table = table
        self._hand_overs = hand_overs
        self._settings = settings
        self._spawn = spawn
        self._wake = asyncio.Event()
        self._since: dict[str, float] = {}  # when preferred leaders were first seen to be able
        self._away_since: dict[int, float] = {}
        self._handing: dict[str, asyncio.Task[None]] = {}
        self._tried: dict[str, float] = {}  # when a hand-over may be tried again
        self._refused: set[str] = set()  # what the leader could not hand over

    def wake(self) -> None:
        """Look soon: there may be more to do."""
        self._wake.set()

    async def run(self) -> None:
        """Work until cancelled."""
        self._coordinator.follow_nodes(self.wake)
        self._coordinator.follow_controller(self.wake)
        try:
            while True:
                if self._coordinator.is_controller:
                    await self._look()
                else:
                    self._since.clear()
                    self._away_since.clear()
                try:
                    async with asyncio.timeout(CHECK_SECONDS):
                        await self._wake.wait()
                except TimeoutError:
                    pass
                self._wake.clear()
        finally:
            for task in self._handing.values():
                task.cancel()

    async def _look(self) -> None:
        try:
            moves = known_moves(self._coordinator)
            await self._replace_nodes(moves)
            await self._move(moves)
            self._prefer_leaders(moves)
        except ConflictError:
            self._wake.set()
        except CoordinatorError as error:
            logger.warning("partitions stay where they are for now: %s", error)

    # -- moves

    async def _move(self, moves: Mapping[str, PartitionMove]) -> None:
        """Take the next step of each move that is under way, and begin others."""
        moving = 0
        for key, move in moves.items():
            found = self._table.with_version(key)
            if found is None or not set(move.target) & self._coordinator.nodes.keys():
                if found is None:
                    await self._write([KeyChange(MOVES_PREFIX + key, None)])  # it was deleted
                continue
            state, version = found
            if set(move.target) <= set(state.replicas):
                moving += await self._proceed(key, move, state, version)
            elif moving < self._settings.moves_at_once:
                moving += 1
                wanted = reassign(state, move.target)
                assert wanted is not None, "it lacks a replica"
                logger.info("%s moves to the nodes %s", key, _listed(move.target))
                await self._write([KeyChange(PARTITIONS_PREFIX + key, wanted.to_bytes(), version)])

    async def _proceed(
        self, key: str, move: PartitionMove, state: PartitionState, version: int
    ) -> bool:
        """Take the next step of a move that has begun. Returns whether it waits for data."""
        nodes = registrations(self._coordinator)
        lagging = set(move.target) - state.in_sync_nodes
        if lagging:
            return not lagging.isdisjoint(nodes)
        leads_on = state.leader is None or state.leader in move.target
        if not leads_on and key not in self._refused:  # else it is elected
            self._begin_hand_over(key, state, move.target)
            return False
        self._refused.discard(key)
        changes = [KeyChange(MOVES_PREFIX + key, None)]
        if set(state.replicas) == set(move.target):
            wanted = reassign(state, move.target)  # only the order is another
        else:
            wanted = settle_move(state, move.target, nodes)
            if wanted is None:
                return False
        if wanted is not None:
            changes.append(KeyChange(PARTITIONS_PREFIX + key, wanted.to_bytes(), version))
        await self._write(changes)
        logger.info("%s is on the nodes %s", key, _listed(move.target))
        return False

    async def _write(self, changes: list[KeyChange]) -> None:
        try:
            await self._coordinator.write_as_controller(changes)
        except ConflictError:
            self._wake.set()  # it is looked at again as it is then

    # -- leaders

    def _begin_hand_over(self, key: str, state: PartitionState, nodes: tuple[int, ...]) -> None:
        """Have the first of some nodes lead that can, a few partitions at a time."""
        now = asyncio.get_running_loop().time()
        if (
            key in self._handing
            or len(self._handing) >= HAND_OVERS_AT_ONCE
            or self._tried.get(key, 0.0) > now
            or state.leader is None
        ):
            return
        there = registrations(self._coordinator)
        drained = draining_nodes(self._coordinator.entries)
        target = next(
            (each for each in nodes if each not in drained and hand_over(state, each, there)), None
        )
        if target is not None:
            self._tried[key] = now + self._settings.preferred_seconds
            self._handing[key] = self._spawn(self._hand_over(key, state.leader, target))

    async def _hand_over(self, key: str, leader: int, target: int) -> None:
        try:
            if await self._hand_overs.ask(leader, key, target):
                logger.info("%s is led by node %d, and no longer by %d", key, target, leader)
                self._tried.pop(key, None)
                self._refused.discard(key)
            else:
                self._refused.add(key)
        finally:
            self._handing.pop(key, None)
            self._wake.set()

    def _prefer_leaders(self, moves: Mapping[str, PartitionMove]) -> None:
        """Have preferred leaders lead again, and draining nodes lead no more."""
        now = asyncio.get_running_loop().time()
        drained = draining_nodes(self._coordinator.entries)
        there = registrations(self._coordinator)
        for key, state in self._table.states.items():
            preferred = state.replicas[0]
            if key in moves or state.leader is None or state.leader == preferred:
                self._since.pop(key, None)
                if state.leader in drained and key not in moves:
                    self._begin_hand_over(key, state, state.replicas)
            elif preferred in drained or hand_over(state, preferred, there) is None:
                self._since.pop(key, None)
                if state.leader in drained:
                    self._begin_hand_over(key, state, state.replicas)
            elif now - self._since.setdefault(key, now) >= self._settings.preferred_seconds:
                self._begin_hand_over(key, state, (preferred,))

    # -- nodes that stay away

    async def _replace_nodes(self, moves: dict[str, PartitionMove]) -> None:
        """Have the replicas of nodes that do not come back placed on others."""
        now = asyncio.get_running_loop().time()
        present = self._coordinator.nodes
        for node in [each for each in self._away_since if each in present]:
            del self._away_since[node]
        if not self._settings.replace_seconds:
            return
        entries = self._coordinator.entries
        for name in entries.keys(DIRECTORIES_PREFIX):
            node = int(name.removeprefix(DIRECTORIES_PREFIX))
            if node in present:
                continue
            if now - self._away_since.setdefault(node, now) >= self._settings.replace_seconds:
                self._away_since[node] = now  # those that cannot move now are looked at later
                states = {
                    key: state for key, state in self._table.states.items() if key not in moves
                }
                planned = await asyncio.to_thread(
                    plan_departure, states, node, known_racks(self._coordinator)
                )
                if planned:
                    logger.warning(
                        "node %d stays away: its %d replicas are placed on other nodes",
                        node,
                        len(planned),
                    )
                    await self.begin(planned)
                    moves |= planned

    async def begin(self, planned: Mapping[str, PartitionMove]) -> None:
        """Write moves down, which are carried out from then on. Raises CoordinatorError."""
        changes = [KeyChange(MOVES_PREFIX + key, move.to_bytes()) for key, move in planned.items()]
        for first in range(0, len(changes), KEYS_AT_ONCE):
            await self._coordinator.write_as_controller(changes[first : first + KEYS_AT_ONCE])
        self._wake.set()


def _listed(nodes: tuple[int, ...]) -> str:
    return ", ".join(map(str, nodes))
