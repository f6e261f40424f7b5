"""Partitions of the decisions on one node: their logs, and questions to whoever leads them."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from leveret.cluster.metadata.registrations import decode_session
from leveret.cluster.partition_state import PartitionState
from leveret.cluster.replication.leader import ReplicationLimits
from leveret.cluster.transactions.decisions import TransactionOutcome
from leveret.cluster.transactions.numbers import TransactionNumber, is_of_cluster
from leveret.clustering.transactions.decision_log import LedDecisions
from leveret.clustering.transactions.handing_over import PausedDecisions
from leveret.clustering.transactions.participants import Participant
from leveret.clustering.transactions.placing import (
    DECISIONS_KEY,
    DECISIONS_REPLICATION,
    decisions_key,
)
from leveret.clustering.transactions.wire import (
    MALFORMED,
    NOT_LEADING,
    pack_question,
    parse_question,
)
from leveret.errors import LeveretError, StorageError
from leveret.links.errors import PeerRefusedError
from leveret.ports import Retention
from leveret.ports.coordination import SESSIONS_PREFIX
from leveret.ports.link_kinds import ASK_OUTCOME
from leveret.replication.replica import PartitionReplica
from leveret.replication.replicator import PARTITIONS_PREFIX
from leveret.storage.decisions import CLUSTER_INCARNATION, DECISIONS_TOPIC

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping, Sequence

    from leveret.links.identity import NodeIdentity
    from leveret.links.links import Links
    from leveret.ports import Clock, Durability
    from leveret.ports.coordination import Coordinator, KeyChange
    from leveret.replication.replicator import Replicator
    from leveret.storage.log import PartitionLog
    from leveret.storage.store import FileTopicStore

__all__ = ["DecisionPartitions", "TransactionServices"]

logger = logging.getLogger(__name__)

LIMITS: Final = ReplicationLimits(lag_ms_max=10_000, in_sync_min=DECISIONS_REPLICATION.in_sync_min)
SEGMENT_BYTES: Final = 1 << 20  # decisions live for seconds: files that can go soon
ANSWER_SECONDS: Final = 10.0
FORGET_SECONDS: Final = 1.0


@dataclass(frozen=True, slots=True)
class TransactionServices:
    """Services of a node for transactions of the cluster. `spawn` starts a task."""

    node: int
    coordinator: Coordinator
    links: Links
    replicator: Replicator
    topics: FileTopicStore
    durability: Durability
    clock: Clock
    spawn: Callable[[Coroutine[object, object, None]], asyncio.Task[None]]
    report: Callable[[object, Exception], None]


@dataclass(eq=False)
class DecisionReplica:
    """This node's copy of a partition of the decisions."""

    services: TransactionServices
    number: int
    log: PartitionLog = field(init=False)

    def __post_init__(self) -> None:
        """Open the log. Raises StorageError."""
        self.log = self._open()

    def _open(self) -> PartitionLog:
        return self.services.topics.open(
            "",
            DECISIONS_TOPIC,
            CLUSTER_INCARNATION,
            self.number,
            self.services.durability,
            retention=Retention(segment_bytes_max=SEGMENT_BYTES),
            has_replicas=True,
        )

    async def reopen(self) -> PartitionLog:
        """Close the log, which has failed, and open it again (see PartitionReplica)."""
        await self.log.close()
        self.log = self._open()
        return self.log


# Takes a partition and its epoch. Returns whether no transaction has a number of it any more.
GiveBack: TypeAlias = "Callable[[int, int], Awaitable[bool]]"


async def _give_all_back(_partition: int, _epoch: int) -> bool:
    """Give the numbers of a node back that has none."""
    return True


class DecisionPartitions:
    """The decisions, as one node sees them.

    `parts_of(participant, transactions)` says which of these one that is led here still has, None
    if that is not known here.
    """

    def __init__(
        self,
        services: TransactionServices,
        parts_of: Callable[[Participant, Sequence[int]], list[int] | None],
    ) -> None:
        self.led_changes: list[Callable[[], None]] = []  # called when one is led and loaded
        self.give_back: GiveBack = _give_all_back  # numbers of this node
        self._services = services
        self._parts_of = parts_of
        self._replicas: dict[int, DecisionReplica] = {}
        self._led: dict[int, LedDecisions] = {}
        self._states: dict[int, PartitionState] = {}

    def open(self) -> None:
        """Follow the coordinator: have replicas, and lead."""
        coordinator = self._services.coordinator
        coordinator.follow(self._changed)
        for key in list(coordinator.entries.keys(PARTITIONS_PREFIX + DECISIONS_KEY)):
            self._follow(key)

    def start(self) -> None:
        """Forget in time."""
        self._services.spawn(self._forgetting())

    # -- replicas, and who leads

    def _changed(self, _sequence: int, changes: Sequence[KeyChange]) -> None:
        for change in changes:
            if change.key.startswith(PARTITIONS_PREFIX + DECISIONS_KEY):
                self._follow(change.key)

    def _follow(self, key: str) -> None:
        entry = self._services.coordinator.entries.get(key)
        if entry is None:
            return
        try:
            number = int(key.rpartition("/")[2])
            state = PartitionState.from_bytes(entry.value)
        except ValueError as error:
            logger.warning("%s is not followed: %s", key, error)
            return
        self._states[number] = state
        is_replica = self._services.node in state.replicas
        if is_replica and number not in self._replicas:
            self._have_replica(number)
        elif not is_replica and number in self._replicas:
            self._drop_replica(number)
        self.led_changed(decisions_key(number))
        self._tell()

    def _have_replica(self, number: int) -> None:
        try:
            replica = self._replicas[number] = DecisionReplica(self._services, number)
        except StorageError as error:
            logger.warning("no replica of decisions %d: %s", number, error)
            return
        key = decisions_key(number)
        self._services.replicator.add(
            PartitionReplica(key, key, replica.log, LIMITS, replica.reopen)
        )

    def _drop_replica(self, number: int) -> None:
        """Delete the log: its replica has moved to another node."""
        services, key = self._services, decisions_key(number)
        services.replicator.remove(key)
        self.led_changed(key)
        services.spawn(self._replicas.pop(number).log.delete())

    def led_changed(self, key: str) -> None:
        """Note that this node leads a partition, is ready to, or leads it no more."""
        if not key.startswith(DECISIONS_KEY):
            return
        number = int(key.removeprefix(DECISIONS_KEY))
        role = self._services.replicator.led(key)
        epoch = 0 if role is None else role.machine.epoch
        led = self._led.get(number)
        if led is not None and led.epoch != epoch:
            del self._led[number]
            led.end()
        if role is not None and role.is_ready and number not in self._led:
            log = self._replicas[number].log
            services = self._services
            led = LedDecisions(number, log, epoch, services.clock.wall_ms, services.report)
            self._led[number] = led
            services.spawn(self._load(number, led))

    async def _load(self, number: int, led: LedDecisions) -> None:
        delay = FORGET_SECONDS
        while self._led.get(number) is led:
            try:
                await led.load()
            except LeveretError as error:
                logger.warning("decisions %d cannot be read, and are not used: %s", number, error)
                await asyncio.sleep(delay)
            else:
                self._tell()
                return

    def _tell(self) -> None:
        for changed in self.led_changes:
            changed()

    def led(self, number: int) -> LedDecisions | None:
        """Return a partition that this node leads and has loaded, unless it hands it over."""
        led = self._led.get(number)
        return led if led is not None and led.is_loaded and not led.is_paused else None

    def epoch_of(self, number: int) -> int:
        """Return the epoch of a partition, 0 if it has no leader."""
        state = self._states.get(number)
        return 0 if state is None or state.leader is None else state.epoch

    @property
    def with_leader(self) -> list[int]:
        """Partitions that have a leader, those of this node first."""
        found = [number for number in sorted(self._states) if self.epoch_of(number)]
        return sorted(found, key=lambda number: self.led(number) is None)

    # -- handing leadership over

    async def pause(self, key: str) -> PausedDecisions | None:
        """Decide nothing in a partition (see operating.hand_overs.LedPartitions)."""
        if not key.startswith(DECISIONS_KEY):
            return None
        number = int(key.removeprefix(DECISIONS_KEY))
        led = self.led(number)
        if led is None:
            return None
        led.is_leaving = True
        try:
            led.is_paused = await self._have_given_back(number, led.epoch) and not led.has_ended
        finally:
            led.is_leaving = led.is_paused
        if not led.is_paused:
            return None
        services = self._services
        return PausedDecisions(key, led, self._replicas[number].log, services.replicator)

    async def _have_given_back(self, number: int, epoch: int) -> bool:
        """Have all nodes give back the numbers that they have of this leader."""
        services = self._services
        question = {"ask": "give back", "partition": number, "epoch": epoch}
        others = [node for node in services.coordinator.nodes if node != services.node]
        try:
            answers = await asyncio.gather(*(self._ask_node(node, question) for node in others))
        except LeveretError as error:
            logger.info("decisions %d are not handed over: %s", number, error)
            return False
        return all(each["given"] for each in answers) and await self.give_back(number, epoch)

    # -- asking

    async def ask(self, number: int, question: dict[str, Any]) -> dict[str, Any]:
        """Ask the leader of a partition. Raises LeveretError, also for want of one."""
        state = self._states.get(number)
        if state is None or state.leader is None:
            raise StorageError(f"decisions {number} about transactions have no leader")
        services = self._services
        if state.leader == services.node:
            return await self._answer(number, question)
        return await self._ask_node(state.leader, {"partition": number, **question})

    async def _ask_node(self, node: int, question: dict[str, Any]) -> dict[str, Any]:
        peer = self._services.links.peer(node)
        payload = pack_question(question)
        answer = await peer.request(ASK_OUTCOME, payload, timeout_s=ANSWER_SECONDS)
        return parse_question(answer)

    async def outcome(self, transaction: int, participant: str) -> TransactionOutcome:
        """Ask for the outcome of a transaction once. Raises LeveretError."""
        question = {"ask": "outcome", "transaction": transaction, "participant": participant}
        answer = await self.ask(TransactionNumber.of(transaction).partition, question)
        return TransactionOutcome(answer["outcome"])

    # -- answering

    async def serve(self, _identity: NodeIdentity, payload: memoryview) -> bytes:
        """Answer another node's question: the handler of such requests."""
        question = parse_question(payload)
        try:
            if question["ask"] == "parts":
                return pack_question({"parts": self._parts(question["of"])})
            if question["ask"] == "give back":
                given = await self.give_back(question["partition"], question["epoch"])
                return pack_question({"given": given})
            return pack_question(await self._answer(int(question["partition"]), question))
        except (KeyError, TypeError, ValueError) as error:
            raise PeerRefusedError(MALFORMED, f"no question about transactions: {error}") from error

    def _parts(self, asked: Mapping[str, Sequence[int]]) -> dict[str, list[int]]:
        found = {}
        for name, transactions in asked.items():
            there = self._parts_of(Participant.parse(name), transactions)
            if there is not None:
                found[name] = there
        return found

    async def _answer(self, number: int, question: dict[str, Any]) -> dict[str, Any]:
        led = self.led(number)
        if led is None:
            raise PeerRefusedError(NOT_LEADING, f"this node does not lead decisions {number}")
        match question["ask"]:
            case "numbers":
                numbers = led.draw()
                return {"numbers": [numbers.start, numbers.stop]}
            case "decide":
                return {"outcome": (await self._decide(led, question["transactions"])).value}
            case "outcome":
                transaction = int(question["transaction"])
                participant = Participant.parse(question["participant"])
                return {"outcome": (await self._outcome(number, transaction, participant)).value}
            case other:
                raise ValueError(f"{other!r} is not answered")

    async def _decide(
        self, led: LedDecisions, transactions: Iterable[tuple[int, list[str]]]
    ) -> TransactionOutcome:
        result: asyncio.Future[TransactionOutcome]
        result = asyncio.get_running_loop().create_future()

        def told(outcome: TransactionOutcome) -> None:
            if not result.done():  # the request was cancelled
                result.set_result(outcome)

        led.decide({int(each): names for each, names in transactions}, told)
        return await result

    async def _outcome(
        self, number: int, transaction: int, participant: Participant
    ) -> TransactionOutcome:
        """Return an outcome for a participant.

        One that leads its partition no more must not hear that a transaction has aborted which is
        only forgotten, because the leaders behind it know that it has committed.
        """
        coordinator = self._services.coordinator
        await coordinator.catch_up()
        led = self.led(number)
        if led is None or not is_of_cluster(transaction):
            return TransactionOutcome.UNKNOWN
        if participant.node is None:
            state = self._state_of(participant.key)
            if state is None or state.epoch != participant.epoch:
                return TransactionOutcome.UNKNOWN
        return led.machine.outcome(transaction)

    def _state_of(self, key: str) -> PartitionState | None:
        entry = self._services.coordinator.entries.get(PARTITIONS_PREFIX + key)
        return None if entry is None else PartitionState.from_bytes(entry.value)

    # -- forgetting

    async def _forgetting(self) -> None:
        """Ask participants which decisions they still need, again and again."""
        while True:
            await asyncio.sleep(FORGET_SECONDS)
            for number, led in list(self._led.items()):
                if led.is_loaded and not led.is_leaving:
                    try:
                        await self._forget(number, led)
                    except (LeveretError, ValueError) as error:
                        logger.debug("decisions %d stay: %s", number, error)

    async def _forget(self, number: int, led: LedDecisions) -> None:
        by_node: dict[int, dict[str, list[int]]] = {}
        for name, transactions in sorted(led.to_ask().items()):
            participant = Participant.parse(name)
            node = self._node_of(participant)
            if self._is_gone(participant):
                led.heard(name, transactions)
            elif node is not None:
                by_node.setdefault(node, {})[name] = transactions
        for node, asked in by_node.items():
            try:
                parts = await self._ask_parts(node, asked)
            except LeveretError as error:
                logger.debug("node %d does not say which decisions it needs: %s", node, error)
                continue
            if self._led.get(number) is not led or led.is_leaving:
                return
            for name, there in parts.items():
                led.heard(name, set(asked.get(name, ())).difference(there))

    async def _ask_parts(self, node: int, asked: dict[str, list[int]]) -> dict[str, list[int]]:
        if node == self._services.node:
            return self._parts(asked)
        answer = await self._ask_node(node, {"ask": "parts", "of": asked})
        parts: dict[str, list[int]] = answer["parts"]
        return parts

    def _node_of(self, participant: Participant) -> int | None:
        if participant.node is not None:
            return participant.node
        state = self._state_of(participant.key)
        return None if state is None else state.leader

    def _is_gone(self, participant: Participant) -> bool:
        entries = self._services.coordinator.entries
        if participant.node is None:
            return PARTITIONS_PREFIX + participant.key not in entries
        if participant.log:
            return False
        entry = entries.get(f"{SESSIONS_PREFIX}{participant.node}")
        return entry is not None and decode_session(entry.value) > participant.session
