"""Kills under consumer groups whose members come and go: what each group gets, and in which order.

See tests/harness/group_account.py for what is checked at each delivery.
"""

from __future__ import annotations

import random
import time
from typing import TYPE_CHECKING

import pytest

from leveret.mgmt_ui.control_client import request
from leveret.ports.partitioner import hash_key
from tests.harness.broker import BrokerProcess
from tests.harness.group_account import Account
from tests.harness.group_members import (
    QUEUE,
    AioPikaMember,
    AioPikaPublisher,
    Drainer,
    Operator,
    PikaMember,
    WirePublisher,
)
from tests.harness.kills import kill_after, kill_starts
from tests.harness.wire import Client
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from pathlib import Path

    from tests.harness.group_members import Party

pytestmark = pytest.mark.usefixtures("processes")

GROUPS = ("a", "b", "c")
MEMBERS = (PikaMember, AioPikaMember, PikaMember, AioPikaMember)  # 3 of each group, from its place
PARTITIONS = {"x-partitions": 4}
KINDS = {
    "stream": {"x-queue-type": "stream"},
    "quorum": {"x-queue-type": "quorum", "x-retention": "1h"},
}
LIFE_EVENTS = (200, 4000)
CATCH_UP_SECONDS_MAX = 90
QUIET_SECONDS = 1.0


def doom(parties: Iterable[Party]) -> Callable[[], None]:
    """Return what tells the clients that they are about to lose the broker."""

    def tell() -> None:
        for party in parties:
            party.is_doomed = True

    return tell


class Scene:
    """A broker, the queue's clients, and what becomes of them."""

    def __init__(self, data: Path, seed: int, kind: str, *, resized: bool) -> None:
        self.rng = random.Random(seed)
        self.account = Account(GROUPS)
        self.kind = kind
        self.broker = BrokerProcess(data)
        self.members = [
            MEMBERS[place % 2 + number](self.account, self._draw(), group)
            for place, group in enumerate(GROUPS)
            for number in range(3)
        ]
        keys = [f"key-{number}" for number in range(18)]
        self.publishers = [
            WirePublisher(self.account, self._draw(), keys[:12]),
            AioPikaPublisher(self.account, self._draw(), keys[12:]),
        ]
        self.others: list[Party] = []
        if kind != "stream":
            self.others.append(Drainer(self.account, self._draw()))
        self.operator = Operator(self.account, self._draw(), data)
        if resized:
            self.others.append(self.operator)
            for member in self.members:
                member.chooses = False

    def _draw(self) -> random.Random:
        return random.Random(self.rng.random())

    @property
    def parties(self) -> list[Party]:
        return [*self.members, *self.publishers, *self.others]

    def check(self) -> None:
        assert not self.account.troubles, "\n".join(map(str, self.account.troubles))

    def declare(self) -> None:
        with Client(self.broker.port) as client:
            client.declare(QUEUE, **PARTITIONS, **KINDS[self.kind])

    def live(self) -> None:
        """One life of the broker, ended by a kill; sometimes the next one ends at its start."""
        for party in self.parties:
            party.start(self.broker.port)
        if self.operator in self.others:
            changes = self.operator.changes
            wait_until(lambda: self.operator.changes > changes, "another number of partitions")
        number = self.rng.randint(*LIFE_EVENTS)
        kill_after(self.broker, self.account.events, number, first=doom(self.parties))
        for party in self.parties:
            party.join()
        self.account.killed()
        self.check()
        kill_starts(self.broker, self.rng, 0.2)
        self.broker.start()

    def catch_up(self) -> None:
        """Let all groups read what there is, and settle it."""
        for member in self.members:
            member.is_steady = True
            member.start(self.broker.port)
        deadline = time.monotonic() + CATCH_UP_SECONDS_MAX
        while any(self.account.missing().values()) and time.monotonic() < deadline:
            self.check()
            time.sleep(0.05)
        missing = {name: sorted(left)[:20] for name, left in self.account.missing().items() if left}
        assert not missing, f"confirmed, and did not come: {missing}"
        # What was not confirmed may come as well, and what was returned comes again.
        wait_until(self.has_settled_all, "all to be settled")
        self.leave()

    def has_settled_all(self) -> bool:
        """Whether the groups have settled everything that is in the log."""
        self.check()
        answer = request(self.broker.data / "control.sock", "group.list", {"vhost": "/"})
        return not any(group["lag"] or group["unacked"] for group in answer["result"])

    def leave(self) -> None:
        for member in self.members:
            member.stop()
        for member in self.members:
            member.join()
        self.check()

    def look_again(self) -> None:
        """Nothing comes to any group after a clean restart."""
        seen = {name: group.seen.total() for name, group in self.account.groups.items()}
        self.broker.stop()
        self.broker.start()
        for member in self.members:
            member.start(self.broker.port)
        time.sleep(QUIET_SECONDS)
        self.leave()
        assert {name: group.seen.total() for name, group in self.account.groups.items()} == seen


def survive(data: Path, seed: int, kind: str, kills: int, *, resized: bool = False) -> Scene:
    scene = Scene(data, seed, kind, resized=resized)
    try:
        scene.broker.start()
        scene.declare()
        for _ in range(kills):
            scene.live()
        scene.catch_up()
        scene.look_again()
        scene.broker.check_untroubled()
    finally:
        scene.broker.kill()
    print(scene.account)
    print(*(f"{type(each).__name__} {each.joined}, asleep {each.sleeps}" for each in scene.members))
    assert scene.account.confirmed
    assert resized or scene.account.found_at == {
        message: place._replace(partition=hash_key(message.key.encode()) % 4)
        for message, place in scene.account.found_at.items()
    }
    assert any(group.redelivered for group in scene.account.groups.values())
    return scene


@pytest.mark.kills
@pytest.mark.parametrize("kind", KINDS)
def test_groups_of_a_partitioned_queue_survive_kills(tmp_path, seed, kind):
    survive(tmp_path / "data", seed, kind, 1)


@pytest.mark.kills
def test_groups_survive_kills_while_partitions_come_and_go(tmp_path, seed):
    survive(tmp_path / "data", seed, "stream", 1, resized=True)


@pytest.mark.soak
@pytest.mark.timeout(900)
@pytest.mark.parametrize("kind", KINDS)
def test_groups_of_a_partitioned_queue_survive_many_kills(tmp_path, seed, kind):
    survive(tmp_path / "data", seed, kind, 10)


@pytest.mark.soak
@pytest.mark.timeout(900)
@pytest.mark.parametrize("kind", KINDS)
def test_groups_survive_many_kills_while_partitions_come_and_go(tmp_path, seed, kind):
    survive(tmp_path / "data", seed, kind, 5, resized=True)
