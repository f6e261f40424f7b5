"""Leadership of a partition is handed over while both nodes live, without harm to clients.

The leader serves nobody for a moment: what clients do waits. Once all that is in its log is
committed and copied, and all nodes know of what is confirmed, it writes the state in which the
other node leads. So nobody sends again what is stored already, and nothing is nacked. Where that
takes too long it leads on.

    HAND_OVER   {"key": "INCARNATION/0", "node": 2}     {"done": true}
    LOG_ENDS    {"keys": ["INCARNATION/0", …]}          {"ends": {"INCARNATION/0": [3, 1200]}}

The latter are the last epoch and the end of each replica that the node has.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
from typing import TYPE_CHECKING, Any, Final, Protocol

from leveret.cluster.controller import hand_over
from leveret.cluster.partition_state import PartitionState
from leveret.links.errors import LinkError, PeerRefusedError
from leveret.ports.coordination import ConflictError, CoordinatorError, KeyChange
from leveret.ports.epochs import EpochEnd
from leveret.ports.link_kinds import HAND_OVER, LOG_ENDS
from leveret.replication.replicator import PARTITIONS_PREFIX, registrations

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from leveret.links.accepted import RequestHandler
    from leveret.links.identity import NodeIdentity
    from leveret.links.links import Links
    from leveret.ports.coordination import Coordinator
    from leveret.replication.replicator import Replicator

__all__ = ["HandOvers", "LedPartitions", "PausedLeadership"]

logger = logging.getLogger(__name__)

REFUSED_REQUEST: Final = 1  # code of a request that makes no sense
CALM_SECONDS_MAX: Final = 2.0  # until no atomic write is under way
COMMIT_SECONDS_MAX: Final = 5.0  # until all in sync have what was published before
LEAVE_SECONDS_MAX: Final = 2.0  # until the other nodes know of it; they would send it again
ANSWER_SECONDS_MAX: Final = CALM_SECONDS_MAX + COMMIT_SECONDS_MAX + LEAVE_SECONDS_MAX + 5
POLL_SECONDS: Final = 0.005
ENDS_SECONDS_MAX: Final = 2.0
WRITES_MAX: Final = 5  # in-sync sets may change meanwhile
HAND_OVERS_AT_ONCE: Final = 50  # when a node stops


class PausedLeadership(Protocol):
    """A partition that this node leads and is about to hand over: nobody is served meanwhile."""

    @property
    def is_over(self) -> bool:
        """Whether this node has ceased to lead, or leads on."""
        ...

    @property
    def is_committed(self) -> bool:
        """Whether all that is in the log is committed."""
        ...

    def confirm(self) -> None:
        """Let those know who wait for what is committed."""
        ...

    def is_ready_for(self, node: int) -> bool:
        """Whether all know what is committed, since `confirm`, and `node` has all of it."""
        ...

    def resume(self) -> None:
        """Lead on, if this node still leads."""
        ...


class LedPartitions(Protocol):
    """Partitions of one kind that a node leads."""

    async def pause(self, key: str) -> PausedLeadership | None:
        """Serve nobody in a partition, as soon as that fails nothing that is under way.

        None if it is not led here, or not of this kind. It may be cancelled.
        """
        ...


class HandOvers:
    """Hands over what this node leads, of all `kinds`, and asks other nodes to do so."""

    def __init__(
        self,
        node: int,
        coordinator: Coordinator,
        links: Links,
        replicator: Replicator,
        kinds: Sequence[LedPartitions],
    ) -> None:
        self._node = node
        self._coordinator = coordinator
        self._links = links
        self._replicator = replicator
        self._kinds = kinds
        self._running: set[str] = set()

    @property
    def requests(self) -> Mapping[int, RequestHandler]:
        """Handlers of other nodes' requests, by their kinds."""
        return {HAND_OVER: self._serve, LOG_ENDS: self._serve_ends}

    # -- as the leader

    async def hand_over(self, key: str, node: int) -> bool:
        """Hand a partition over that this node leads. Returns whether the other node leads it."""
        if key in self._running or not self._may_lead(key, node):
            return False
        self._running.add(key)
        try:
            paused = await self._paused(key)
            if paused is None:
                return False
            try:
                if not await _comes_true(
                    lambda: paused.is_over or paused.is_committed, COMMIT_SECONDS_MAX
                ):
                    return False
                paused.confirm()
                await _comes_true(
                    lambda: paused.is_over or paused.is_ready_for(node), LEAVE_SECONDS_MAX
                )
                return not paused.is_over and await self._write(key, node)
            finally:
                paused.resume()
        finally:
            self._running.discard(key)

    def _may_lead(self, key: str, node: int) -> bool:
        state = self._state(key)
        return (
            state is not None
            and state.leader == self._node
            and hand_over(state, node, registrations(self._coordinator)) is not None
        )

    def _state(self, key: str) -> PartitionState | None:
        entry = self._coordinator.entries.get(PARTITIONS_PREFIX + key)
        return None if entry is None else PartitionState.from_bytes(entry.value)

    async def _paused(self, key: str) -> PausedLeadership | None:
        """Pause a partition, as soon as that is possible."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(CALM_SECONDS_MAX):
                for kind in self._kinds:
                    paused = await kind.pause(key)
                    if paused is not None:
                        return paused
        return None

    async def _write(self, key: str, node: int) -> bool:
        """Write that another node leads. Returns whether it does."""
        name = PARTITIONS_PREFIX + key
        for _ in range(WRITES_MAX):
            led, entry = self._replicator.led(key), self._coordinator.entries.get(name)
            if led is None or entry is None:
                return False
            state = PartitionState.from_bytes(entry.value)
            wanted = hand_over(state, node, registrations(self._coordinator))
            if wanted is None or state.epoch != led.machine.epoch:
                return False
            try:
                await self._coordinator.write([KeyChange(name, wanted.to_bytes(), entry.version)])
            except ConflictError:
                continue
            except CoordinatorError as error:
                logger.warning("%s is not handed over to node %d: %s", key, node, error)
                return False
            return True
        return False

    async def leave(self, seconds: float) -> int:
        """Hand over all that this node leads, within so many seconds. Returns how many it was.

        What no other node can lead stays.
        """
        slots = asyncio.Semaphore(HAND_OVERS_AT_ONCE)
        handed: list[str] = []

        async def hand(key: str) -> None:
            async with slots:
                target = self._next_leader(key)
                if target is not None and await self.hand_over(key, target):
                    handed.append(key)

        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds), asyncio.TaskGroup() as tasks:
                for key in self._replicator.led_keys():
                    tasks.create_task(hand(key))
        return len(handed)

    def _next_leader(self, key: str) -> int | None:
        state = self._state(key)
        replicas = () if state is None else state.replicas
        return next((node for node in replicas if self._may_lead(key, node)), None)

    # -- for other nodes

    async def _serve(self, _: NodeIdentity, payload: memoryview) -> bytes:
        match _parsed(payload):
            case {"key": str(key), "node": int(node)}:
                return json.dumps({"done": await self.hand_over(key, node)}).encode()
        raise PeerRefusedError(REFUSED_REQUEST, "no request to hand a partition over")

    async def _serve_ends(self, _: NodeIdentity, payload: memoryview) -> bytes:
        match _parsed(payload):
            case {"keys": list(keys)}:
                ends = {key: self._replicator.end_of(str(key)) for key in keys}
                return json.dumps({"ends": ends}).encode()
        raise PeerRefusedError(REFUSED_REQUEST, "no request for the ends of replicas")

    # -- asking

    async def ask(self, leader: int, key: str, node: int) -> bool:
        """Have a leader hand a partition over. Returns whether it has."""
        if leader == self._node:
            return await self.hand_over(key, node)
        answer = await self._asked(
            leader, HAND_OVER, {"key": key, "node": node}, ANSWER_SECONDS_MAX
        )
        return answer is not None and answer.get("done") is True

    async def ends(self, node: int, keys: Sequence[str]) -> dict[str, EpochEnd]:
        """Return how far a node's replicas have come; nothing of those that it does not tell."""
        if node == self._node:
            told = {key: self._replicator.end_of(key) for key in keys}
            return {key: end for key, end in told.items() if end is not None}
        answer = await self._asked(node, LOG_ENDS, {"keys": list(keys)}, ENDS_SECONDS_MAX)
        found = {}
        for key, end in (answer or {}).get("ends", {}).items():
            if end is not None:
                epoch, offset = end
                found[key] = EpochEnd(int(epoch), int(offset))
        return found

    async def _asked(
        self, node: int, kind: int, question: dict[str, Any], seconds: float
    ) -> dict[str, Any] | None:
        payload = json.dumps(question, separators=(",", ":")).encode()
        try:
            answer = await self._links.peer(node).request(kind, payload, timeout_s=seconds)
        except LinkError as error:
            logger.info("node %d does not answer: %s", node, error)
            return None
        return _parsed(answer)


def _parsed(payload: memoryview) -> dict[str, Any]:
    try:
        found = json.loads(bytes(payload))
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


async def _comes_true(condition: Callable[[], bool], seconds: float) -> bool:
    """Wait for a condition, so long at most; return it."""
    deadline = asyncio.get_running_loop().time() + seconds
    while not condition():
        if asyncio.get_running_loop().time() >= deadline:
            return False
        await asyncio.sleep(POLL_SECONDS)
    return True
