"""Administration of a cluster: what its commands ask for (see mgmt_ui.operations.cluster)."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from leveret.cluster.controller import (
    abandon_move,
    elect_unclean,
    give_up_replica,
    hand_over,
    reassign,
)
from leveret.cluster.moves import PartitionMove, plan_balance, plan_departure
from leveret.clustering.operating.critical import is_critical, kept_by
from leveret.clustering.operating.states import each_move, known_moves, known_racks
from leveret.core.definitions.administration import AdministrationError
from leveret.ports.cluster_figures import (
    BELOW_MIN_ISR,
    COPYING,
    NO_LEADER,
    SETTLING,
    STUCK,
    UNDER_REPLICATED,
    WAITING,
    WELL,
    ClusterFigures,
    NodeCondition,
    NodeFigures,
    PartitionFigures,
)
from leveret.ports.coordination import (
    DIRECTORIES_PREFIX,
    DRAINING,
    LINKS_PREFIX,
    MOVES_PREFIX,
    NODES_PREFIX,
    ConflictError,
    CoordinatorError,
    KeyChange,
    draining_nodes,
)
from leveret.replication.replicator import PARTITIONS_PREFIX, registrations

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from leveret.cluster.partition_state import PartitionState
    from leveret.clustering.operating.hand_overs import HandOvers
    from leveret.clustering.operating.mover import PartitionMover
    from leveret.core.settings.replication import Replication
    from leveret.links.links import Links
    from leveret.ports.coordination import Coordinator
    from leveret.ports.definitions import QueueDefinition
    from leveret.replication.partition_table import PartitionTable

__all__ = ["OperatedCluster"]

logger = logging.getLogger(__name__)

Rows = list[dict[str, Any]]

WRITES_MAX: Final = 5  # states may change meanwhile


class OperatedCluster:
    """`ClusterAdministration` of a node; the changes are for the controller.

    `queues()` are the definitions that there are, `replication(queue)` says how many replicas the
    partitions of one have, and must have in sync. `others` says it of partitions that are of no
    queue, by the first part of their keys. `condition_of(node)` is what a node has told of itself.
    """

    def __init__(
        self,
        node: int,
        coordinator: Coordinator,
        links: Links,
        *,
        table: PartitionTable,
        hand_overs: HandOvers,
        mover: PartitionMover,
        queues: Callable[[], Iterator[QueueDefinition]],
        replication: Callable[[QueueDefinition], Replication],
        others: Mapping[str, Replication],
        condition_of: Callable[[int], NodeCondition],
    ) -> None:
        self._node = node
        self._coordinator = coordinator
        self._links = links
        self._table = table
        self._hand_overs = hand_overs
        self._mover = mover
        self._queues = queues
        self._replication = replication
        self._others = others
        self._condition_of = condition_of

    # -- looking

    def status(self) -> dict[str, Any]:
        """Return nodes, coordinator, and counts of partitions (see ClusterAdministration)."""
        coordinator = self._coordinator
        states = self._table.states
        replicas = Counter(node for state in states.values() for node in state.replicas)
        leaders = Counter(state.leader for state in states.values())
        queues = self._by_incarnation()
        problems = Counter(self._problem(key, state, queues) for key, state in states.items())
        return {
            "node": self._node,
            "cluster": coordinator.cluster_id,
            "controller": coordinator.controller,
            "coordinator": {
                "connected": coordinator.is_connected,
                "problem": None if coordinator.failure is None else str(coordinator.failure),
                "sequence": coordinator.sequence,
            },
            "nodes": [self._node_row(node, replicas, leaders) for node in self._known_nodes()],
            "partitions": {
                "all": len(states),
                "without_leader": problems[NO_LEADER],
                "below_min_isr": problems[BELOW_MIN_ISR],
                "under_replicated": problems[UNDER_REPLICATED],
            },
            "moves": len(known_moves(coordinator)),
        }

    def _known_nodes(self) -> list[int]:
        names = self._coordinator.entries.keys(DIRECTORIES_PREFIX)
        known = {int(name.removeprefix(DIRECTORIES_PREFIX)) for name in names}
        return sorted(known | self._coordinator.nodes.keys())

    def _node_row(
        self, node: int, replicas: Counter[int], leaders: Counter[int | None]
    ) -> dict[str, Any]:
        known = self._coordinator.nodes.get(node)
        condition = self._condition_of(node)
        return {
            "node": node,
            "state": "down"
            if known is None
            else "draining"
            if node in draining_nodes(self._coordinator.entries)
            else "up",
            "draining": node in draining_nodes(self._coordinator.entries),
            "controller": node == self._coordinator.controller,
            "rack": "" if known is None else known.rack,
            "version": "" if known is None else known.software,
            "address": "" if known is None else known.peer_address,
            "client_address": "" if known is None else known.client_address,
            "incarnation": None if known is None else known.incarnation,
            "session": None if known is None else known.session,
            "replicas": replicas[node],
            "leaders": leaders[node],
            "alarms": sorted(condition.low),
            "clock_offset_seconds": condition.clock_offset_seconds,
        }

    def _by_incarnation(self) -> dict[str, QueueDefinition]:
        return {each.incarnation: each for each in self._queues()}

    def _is_whole(self, state: PartitionState) -> bool:
        there = self._coordinator.nodes
        return state.leader in there and set(state.replicas) <= state.in_sync_nodes & there.keys()

    def _replication_of(
        self, key: str, queues: Mapping[str, QueueDefinition]
    ) -> Replication | None:
        """Return the replication that a partition shall have, None if nobody knows of it."""
        owner = key.partition("/")[0]
        queue = queues.get(owner)
        return self._others.get(owner) if queue is None else self._replication(queue)

    def _problem(
        self, key: str, state: PartitionState, queues: Mapping[str, QueueDefinition]
    ) -> str:
        if self._is_whole(state):
            return WELL
        if state.leader is None or state.leader not in self._coordinator.nodes:
            return NO_LEADER
        in_sync = state.in_sync_nodes & self._coordinator.nodes.keys()
        replication = self._replication_of(key, queues)
        needed = 1 if replication is None else replication.in_sync_min
        if len(in_sync) < min(needed, len(state.replicas)):
            return BELOW_MIN_ISR
        return UNDER_REPLICATED

    def partitions(self, *, problems: bool, limit: int | None) -> Rows:
        """Return partitions (see ClusterAdministration)."""
        queues = self._by_incarnation()
        rows: Rows = []
        for key, state in self._table.states.items():
            what = self._problem(key, state, queues)
            if limit is not None and len(rows) >= limit:
                break
            if not problems or what != WELL:
                rows.append(
                    {
                        **_named(key, queues),
                        "state": what,
                        "leader": state.leader,
                        "replicas": list(state.replicas),
                        "in_sync": sorted(state.in_sync_nodes),
                        "epoch": state.epoch,
                    }
                )
        return rows

    def critical(self) -> Rows:
        """Return the partitions that would stop with this node (see ClusterAdministration)."""
        queues = self._by_incarnation()
        present = self._coordinator.nodes.keys()
        rows: Rows = []
        for key, state in self._table.states.items():
            replication = self._replication_of(key, queues)
            if replication is not None and is_critical(state, replication, self._node, present):
                rows.append(
                    {
                        **_named(key, queues),
                        "replicas": list(state.replicas),
                        "in_sync": sorted(state.in_sync_nodes),
                    }
                )
        return rows

    async def moves(self) -> Rows:
        """Return the moves with their progress (see ClusterAdministration)."""
        queues = self._by_incarnation()
        known = known_moves(self._coordinator)
        states = self._table.states
        ends: dict[int, dict[str, int]] = {}
        asked: dict[int, list[str]] = {}
        for key, move in known.items():
            state = states.get(key)
            if state is not None and state.leader is not None:
                for node in {state.leader, *move.target} & self._coordinator.nodes.keys():
                    asked.setdefault(node, []).append(key)
        answers = await asyncio.gather(
            *(self._hand_overs.ends(node, keys) for node, keys in asked.items())
        )
        for node, answer in zip(asked, answers, strict=True):
            ends[node] = {key: each.end for key, each in answer.items()}
        return [
            {
                **_named(key, queues),
                "from": list(move.origin),
                "to": list(move.target),
                **self._progress(key, move, states.get(key), ends),
            }
            for key, move in known.items()
        ]

    def _progress(
        self,
        key: str,
        move: PartitionMove,
        state: PartitionState | None,
        ends: Mapping[int, Mapping[str, int]],
    ) -> dict[str, Any]:
        """Return how far a move is: of the records, the least that one of its new nodes has."""
        what = self._move_state(move, state)
        if state is None or what == WAITING:
            return {"state": what, "copied": 0, "records": None}
        lagging = set(move.target) - state.in_sync_nodes
        if not lagging:
            return {"state": what, "copied": None, "records": None}
        end = None if state.leader is None else ends.get(state.leader, {}).get(key)
        copied = min(ends.get(node, {}).get(key, 0) for node in lagging)
        return {"state": what, "copied": copied, "records": end}

    def _move_state(self, move: PartitionMove, state: PartitionState | None) -> str:
        if state is None or not set(move.target) <= set(state.replicas):
            return WAITING
        lagging = set(move.target) - state.in_sync_nodes
        if not lagging:
            return SETTLING
        return COPYING if lagging & self._coordinator.nodes.keys() else STUCK

    def links(self) -> Rows:
        """Return the figures of links (see ClusterAdministration)."""
        return [
            {
                "node": each.node,
                "dialed": each.is_dialed,
                "connected": each.is_connected,
                "breaker": each.breaker,
                "bytes_sent": each.counters.bytes_sent,
                "bytes_received": each.counters.bytes_received,
                "queued_bytes": each.counters.queued_bytes,
                "failures": each.counters.failures,
                "round_trip_ms": each.counters.round_trip_ns / 1e6,
            }
            for each in self._links.figures()
        ]

    # -- figures for metrics

    def figures(self) -> ClusterFigures:
        """Return figures of this node and of who is there (see ClusterAdministration)."""
        coordinator = self._coordinator
        draining = draining_nodes(coordinator.entries)
        linked = {each.node for each in self._links.figures() if each.is_connected}
        return ClusterFigures(
            coordinator.is_connected,
            coordinator.is_controller,
            coordinator.sequence,
            tuple(
                NodeFigures(
                    node,
                    node in coordinator.nodes,
                    node in draining,
                    node == self._node or (node in coordinator.nodes and node in linked),
                    self._condition_of(node),
                )
                for node in self._known_nodes()
            ),
        )

    def partition_figures(self) -> Iterator[PartitionFigures]:
        """Yield the figures of all partitions (see ClusterAdministration)."""
        queues: dict[str, QueueDefinition] | None = None
        for key, state in list(self._table.states.items()):
            condition = WELL
            if not self._is_whole(state):
                if queues is None:  # a pass over all queues, for nothing where all is well
                    queues = self._by_incarnation()
                condition = self._problem(key, state, queues)
            yield PartitionFigures(
                condition, state.leader == self._node, self._node in state.replicas
            )

    def move_states(self) -> Iterator[str]:
        """Yield how far each move is (see ClusterAdministration)."""
        for key, move in each_move(self._coordinator):
            yield self._move_state(move, self._table.states.get(key))

    # -- nodes

    async def add(self, node: int) -> int:
        """Give a node its share (see ClusterAdministration)."""
        if node not in self._coordinator.nodes:
            raise AdministrationError(
                "not_found", f"node {node} is not there: start it with --cluster first"
            )
        await self._write([KeyChange(f"{NODES_PREFIX}{node}", None)])
        return await self._begin_balance(node)

    async def rebalance(self) -> int:
        """Give all nodes as much (see ClusterAdministration)."""
        return await self._begin_balance(None)

    async def _begin_balance(self, onto: int | None) -> int:
        states, queues = self._planned_states(), self._by_incarnation()
        wanted = {
            key: replication.replicas
            for key in states
            if (replication := self._replication_of(key, queues)) is not None
        }
        planned = await asyncio.to_thread(
            plan_balance, states, known_racks(self._coordinator), wanted, onto=onto
        )
        return await self._begin(planned)

    def _planned_states(self) -> dict[str, PartitionState]:
        """Return the states as they will be after the moves that are under way."""
        moves = known_moves(self._coordinator)
        return {
            key: replace(state, replicas=moves[key].target) if key in moves else state
            for key, state in self._table.states.items()
        }

    async def _begin(self, planned: Mapping[str, PartitionMove]) -> int:
        """Begin moves; those of partitions that move already get another target."""
        known = known_moves(self._coordinator)
        moves = {
            key: move._replace(origin=known[key].origin) if key in known else move
            for key, move in planned.items()
        }
        try:
            await self._mover.begin(moves)
        except CoordinatorError as error:
            raise AdministrationError("storage", str(error)) from error
        return len(moves)

    async def drain(self, node: int) -> dict[str, int]:
        """Have a node left by everything (see ClusterAdministration)."""
        if node not in self._known_nodes():
            raise AdministrationError("not_found", f"the cluster has no node {node}")
        await self._write([KeyChange(f"{NODES_PREFIX}{node}", DRAINING)])
        states = self._planned_states()
        planned = await asyncio.to_thread(
            plan_departure, states, node, known_racks(self._coordinator)
        )
        moving = await self._begin(planned)
        there = sum(node in state.replicas for state in states.values())
        return {"moving": moving, "staying": there - moving}

    async def undrain(self, node: int) -> None:
        """Let a node have replicas again (see ClusterAdministration)."""
        if node not in draining_nodes(self._coordinator.entries):
            raise AdministrationError("not_found", f"node {node} is not drained")
        await self._write([KeyChange(f"{NODES_PREFIX}{node}", None)])

    async def remove(self, node: int, *, force: bool) -> int:
        """Forget a node (see ClusterAdministration)."""
        if node not in self._known_nodes():
            raise AdministrationError("not_found", f"the cluster has no node {node}")
        if node in self._coordinator.nodes:
            raise AdministrationError(
                "invalid", f"node {node} is there: drain it, and stop it before it is removed"
            )
        held = [key for key, state in self._table.states.items() if node in state.replicas]
        if held and not force:
            raise AdministrationError(
                "invalid",
                f"node {node} has {len(held)} replicas: `leveret cluster drain {node}` moves them "
                "to other nodes, --force gives them up",
            )
        stay = [key for key in held if not await self._change(key, partial(_without, node))]
        if stay:
            queues, states = self._by_incarnation(), self._table.states
            raise kept_by(node, [(_readable(key, queues), states[key]) for key in stay])
        prefixes = (DIRECTORIES_PREFIX, NODES_PREFIX, LINKS_PREFIX)
        await self._write([KeyChange(f"{prefix}{node}", None) for prefix in prefixes])
        logger.warning("node %d was removed from the cluster", node)
        return len(held)

    # -- partitions

    def _partitions_of(self, queue: tuple[str, str], partition: int | None) -> list[str]:
        """Return the keys of a queue's partitions. Raises AdministrationError."""
        vhost, name = queue
        found = next((each for each in self._queues() if (each.vhost, each.name) == queue), None)
        if found is None:
            raise AdministrationError("not_found", f"no queue '{name}' in vhost '{vhost}'")
        prefix = f"{found.incarnation}/"
        keys = [
            name.removeprefix(PARTITIONS_PREFIX)
            for name in self._coordinator.entries.keys(PARTITIONS_PREFIX + prefix)
        ]
        if partition is not None:
            keys = [key for key in keys if key == f"{prefix}{partition}"]
        if not keys:
            what = "replicas" if partition is None else f"partition {partition}"
            raise AdministrationError("not_found", f"queue '{name}' has no {what}")
        return keys

    async def move(
        self, queue: tuple[str, str], partition: int | None, nodes: Sequence[int]
    ) -> int:
        """Move partitions (see ClusterAdministration)."""
        keys = self._partitions_of(queue, partition)
        if not nodes or len(set(nodes)) < len(nodes):
            raise AdministrationError("invalid", "name one or more nodes, each once")
        away = [node for node in nodes if node not in self._coordinator.nodes]
        if away:
            raise AdministrationError("invalid", f"node {away[0]} is not there")
        states = self._table.states
        target = tuple(nodes)
        return await self._begin(
            {
                key: PartitionMove(target, states[key].replicas)
                for key in keys
                if key in states and states[key].replicas != target
            }
        )

    async def cancel_moves(self, queue: tuple[str, str] | None, partition: int | None) -> int:
        """End moves (see ClusterAdministration)."""
        moves = known_moves(self._coordinator)
        keys = moves if queue is None else self._partitions_of(queue, partition)
        ended = 0
        for key in [key for key in keys if key in moves]:
            await self._write([KeyChange(MOVES_PREFIX + key, None)])
            origin = moves[key].origin
            ended += 1
            if self._table.states[key].replicas != origin and not await self._change(
                key, partial(_abandoned, origin)
            ):
                logger.warning("%s keeps the replicas that came with its move", key)
        return ended

    async def elect(self, queue: tuple[str, str], partition: int | None, node: int | None) -> Rows:
        """Have partitions led by another node (see ClusterAdministration)."""
        rows = []
        for key in self._partitions_of(queue, partition):
            state = self._table.states[key]
            target = state.replicas[0] if node is None else node
            if state.leader is not None and state.leader != target:
                if hand_over(state, target, registrations(self._coordinator)) is None:
                    raise AdministrationError(
                        "invalid",
                        f"node {target} is not in sync: it would lack what was confirmed",
                    )
                if node is not None:
                    await self._change(key, partial(_preferring, node))
                if not await self._hand_overs.ask(state.leader, key, target):
                    raise AdministrationError(
                        "invalid", f"node {state.leader} could not hand the partition over in time"
                    )
                await self._coordinator.catch_up()  # the leader has written who follows it
            rows.append(self._elected(key))
        return rows

    async def elect_unclean(
        self, queue: tuple[str, str], partition: int | None, node: int | None
    ) -> Rows:
        """Have replicas lead that may lack something (see ClusterAdministration)."""
        rows = []
        for key in self._partitions_of(queue, partition):
            state = self._table.states[key]
            if state.leader is not None and state.leader in self._coordinator.nodes:
                continue
            target = await self._longest(key, state) if node is None else node
            if (
                target is None
                or target not in state.replicas
                or not await self._change(key, partial(self._unclean, target))
            ):
                raise AdministrationError(
                    "invalid",
                    "no replica is there that could lead: start one of the nodes "
                    f"{', '.join(map(str, state.replicas))}",
                )
            logger.warning("%s is led by node %d by an unclean election", key, target)
            rows.append({**self._elected(key), "in_sync_before": sorted(state.in_sync_nodes)})
        if not rows:
            raise AdministrationError(
                "invalid", "the queue has a leader: nothing is to be given up"
            )
        return rows

    def _unclean(self, node: int, state: PartitionState) -> PartitionState | None:
        return elect_unclean(state, node, registrations(self._coordinator))

    async def _longest(self, key: str, state: PartitionState) -> int | None:
        """Return the replica that is there and has the most."""
        there = [node for node in state.replicas if node in self._coordinator.nodes]
        answers = await asyncio.gather(*(self._hand_overs.ends(node, [key]) for node in there))
        found = [
            (answer[key], -place, node)
            for place, (node, answer) in enumerate(zip(there, answers, strict=True))
            if key in answer
        ]
        return max(found)[2] if found else None

    def _elected(self, key: str) -> dict[str, Any]:
        state = self._table.states[key]
        return {"partition": int(key.rpartition("/")[2]), "leader": state.leader}

    # -- writing

    async def _change(
        self, key: str, next_state: Callable[[PartitionState], PartitionState | None]
    ) -> bool:
        """Change a partition's state. Returns False if that cannot be."""
        for _ in range(WRITES_MAX):
            found = self._table.with_version(key)
            wanted = None if found is None else next_state(found[0])
            if found is None or wanted is None:
                return False
            change = KeyChange(PARTITIONS_PREFIX + key, wanted.to_bytes(), found[1])
            try:
                await self._coordinator.write_as_controller([change])
            except ConflictError:
                continue
            except CoordinatorError as error:
                raise AdministrationError("storage", str(error)) from error
            return True
        return False

    async def _write(self, changes: list[KeyChange]) -> None:
        try:
            await self._coordinator.write_as_controller(changes)
        except CoordinatorError as error:
            raise AdministrationError("storage", str(error)) from error
        self._mover.wake()


def _preferring(node: int, state: PartitionState) -> PartitionState | None:
    return reassign(state, (node,))


def _without(node: int, state: PartitionState) -> PartitionState | None:
    return give_up_replica(state, node)


def _abandoned(origin: Sequence[int], state: PartitionState) -> PartitionState | None:
    return abandon_move(state, origin)


def _readable(key: str, queues: Mapping[str, QueueDefinition]) -> str:
    """Return the words that name a partition's queue."""
    named = _named(key, queues)
    return f"queue '{named['queue']}' in vhost '{named['vhost']}'"


def _named(key: str, queues: Mapping[str, QueueDefinition]) -> dict[str, Any]:
    incarnation, _, number = key.partition("/")
    queue = queues.get(incarnation)
    return {
        "vhost": "" if queue is None else queue.vhost,
        "queue": incarnation if queue is None else queue.name,
        "type": "" if queue is None else str(queue.arguments.get("x-queue-type", "classic")),
        "partition": int(number),
    }
