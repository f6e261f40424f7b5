"""Consume, transform, publish: members of a group copy a partitioned queue exactly once."""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from typing import TYPE_CHECKING

import pytest

from tests.harness.broker import BrokerProcess
from tests.harness.group_account import Account, Message
from tests.harness.group_copier import GROUP, TARGET, AioPikaCopier, PikaCopier
from tests.harness.group_members import QUEUE, AioPikaPublisher, WirePublisher
from tests.harness.kills import kill_after
from tests.harness.wire import Client
from tests.support.waiting import wait_until
from tests.system.test_kill_groups import KINDS, PARTITIONS, doom

if TYPE_CHECKING:
    from pathlib import Path

    from tests.harness.group_members import Party

pytestmark = pytest.mark.usefixtures("processes")


def copied(port: int) -> list[Message]:
    """Everything in the target, in order."""
    with Client(port) as client:
        count = client.count(TARGET)
        client.consume(TARGET, no_ack=True)
        return [Message.of(delivery.body) for delivery in client.deliveries(count)]


def check(account: Account, found: list[Message]) -> None:
    twice = [message for message, count in Counter(found).items() if count > 1]
    assert not twice, f"copied twice: {sorted(twice)[:20]}"
    missing = account.confirmed - set(found)
    assert not missing, f"confirmed and not copied: {sorted(missing)[:20]}"
    assert not [message for message in found if message.number >= account.sent[message.key]]
    numbers = defaultdict(list)
    for message in found:
        numbers[message.key].append(message.number)
    assert all(of_key == sorted(of_key) for of_key in numbers.values())


def copy_under_kills(data: Path, seed: int, kind: str, kills: int) -> None:
    rng = random.Random(seed)
    account = Account([GROUP])
    broker = BrokerProcess(data)
    copiers = [
        kind_of_copier(account, random.Random(rng.random()))
        for kind_of_copier in (PikaCopier, AioPikaCopier, PikaCopier)
    ]
    keys = [f"key-{number}" for number in range(12)]
    parties: list[Party] = [
        *copiers,
        WirePublisher(account, random.Random(rng.random()), keys[:8]),
        AioPikaPublisher(account, random.Random(rng.random()), keys[8:]),
    ]
    try:
        broker.start()
        with Client(broker.port) as client:
            client.declare(QUEUE, **PARTITIONS, **KINDS[kind])
            client.declare(TARGET, **PARTITIONS)
        for _ in range(kills):
            for party in parties:
                party.start(broker.port)
            kill_after(broker, account.events, rng.randint(1, 2000), first=doom(parties))
            for party in parties:
                party.join()
            assert not account.troubles, "\n".join(account.troubles)
            broker.start()
        for copier in copiers:
            copier.is_steady = True
            copier.start(broker.port)
        with Client(broker.port) as client:
            wait_until(lambda: client.count(TARGET) >= len(account.confirmed), "copies")
        for copier in copiers:
            copier.stop()
        for copier in copiers:
            copier.join()
        assert not account.troubles, "\n".join(account.troubles)
        found = copied(broker.port)
        check(account, found)
        broker.check_untroubled()
    finally:
        broker.kill()
    print(f"confirmed {len(account.confirmed)}, copied {len(found)}")
    print(*(f"{copier.committed} committed, {copier.abandoned} not" for copier in copiers))
    assert account.confirmed
    assert sum(copier.committed for copier in copiers)


@pytest.mark.covers("C-208")
@pytest.mark.kills
@pytest.mark.parametrize("kind", KINDS)
def test_a_group_copies_exactly_once(tmp_path, seed, kind):
    copy_under_kills(tmp_path / "data", seed, kind, 1)


@pytest.mark.soak
@pytest.mark.timeout(900)
@pytest.mark.parametrize("kind", KINDS)
def test_a_group_copies_exactly_once_under_many_kills(tmp_path, seed, kind):
    copy_under_kills(tmp_path / "data", seed, kind, 10)
