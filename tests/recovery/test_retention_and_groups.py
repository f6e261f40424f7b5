"""Two weeks and more of topics with groups: retention removes just what nobody needs any more."""

from __future__ import annotations

import asyncio
from random import Random

import pytest
from pamqp import commands

from leveret.ports.ranges import RangeSet
from tests.recovery.node import Node
from tests.support.client import Client

HOUR_MS = 3_600_000
DAYS = 21
RETENTION_DAYS, WAITS_MAX_DAYS = 3, 7
DAY_MS = 24 * HOUR_MS


@pytest.fixture
def loop():
    loop = asyncio.new_event_loop()
    yield loop
    loop.close()


class Fortnights:
    """A node whose days are simulated; messages are numbers, whose times are noted."""

    def __init__(self, loop, **arguments):
        self.node = Node(loop, segment_bytes_max=2000)
        self.arguments = {
            "x-partitions": 2,
            "x-retention": f"{RETENTION_DAYS}d",
            "x-retention-waits-for": ["archive"],
            "x-retention-waits-max": f"{WAITS_MAX_DAYS}d",
            **arguments,
        }
        self.node.client.declare("q", durable=True, arguments=self.arguments)
        self.times: list[int] = []
        self.latest = self.node.now  # that the clock has ever said

    @property
    def now(self):
        """Milliseconds since 1970, of the node and of its files."""
        return self.node.now

    def pass_(self, hours):
        """Let time pass, or the clock step back."""
        self.node.clock.now += hours * HOUR_MS
        self.node.topics._services.clock.now_ms = self.node.clock.now
        self.latest = max(self.latest, self.node.clock.now)
        for log in self.node.topics.logs():
            log.check_retention()
        self.node.flush()

    def publish(self, count):
        for _ in range(count):
            number = len(self.times)
            body = b"%d " % number + b"." * 60
            self.node.publish("q", body, headers={"x-partition-key": str(number)})
            self.times.append(self.now)

    def consume(self, name, most=None):
        """Let a group's only member take messages and settle them."""
        client = Client(self.node).open()
        client.prefetch(1 if most else 1000)
        arguments = {"x-consumer-group": name, "x-stream-offset": "first"}
        client.consume("q", "c", arguments=arguments)
        found: list[int] = []
        while received := client.deliveries():
            found += [int(each.body.split()[0]) for each in received]
            client.send(commands.Basic.Ack(received[-1].tag, multiple=True))
            if most and len(found) >= most:
                break
        client.transport.lose()
        self.node.run()
        return set(found)

    def kept(self):
        """Numbers that can still be read."""
        found = set()
        for part in self.node.queue("q").partitions:
            # Retention of a stream settles what it lets go of; its files go when they can.
            gone = part.log.settled if part.settings.is_stream else part.log.removed
            for first, stop in RangeSet([(part.log.first, part.log.committed)]):
                for offset in range(first, stop):
                    if offset not in gone:
                        found.add(int(self.node._record(part.log, offset)[-1].split()[0]))
        return found

    def needed(self, days):
        return {n for n, at in enumerate(self.times) if at > self.latest - days * DAY_MS}


@pytest.mark.parametrize("kind", ["stream", "classic"])
@pytest.mark.parametrize("seed", range(8))
def test_three_weeks_with_groups_that_are_waited_for_and_rewound(loop, kind, seed):
    chance = Random(seed)
    run = Fortnights(loop, **{"x-queue-type": kind})
    archived: set[int] = set()
    seen: set[int] = set()
    run.publish(3)
    archived |= run.consume("archive")
    seen |= run.consume("other")
    for day in range(DAYS):
        run.publish(chance.randrange(1, 6))
        run.pass_(chance.choice([20, 24, 30, -5]))
        if day % 4 == 3:
            archived |= run.consume("archive", most=chance.randrange(2, 12))
        seen |= run.consume("other")
        if day in {9, 15}:
            (group,) = [
                each for each in run.node.broker.groups.all() if each.group.name == "archive"
            ]
            for subscription in group.subscriptions.values():
                subscription.move_to(subscription.log.first)  # rewound: it needs all there is
            archived = set(range(len(run.times))) - run.kept()
        kept = run.kept()
        unread = set(range(len(run.times))) - archived
        # Neither what is young, nor what is waited for, nor what the queue has not settled.
        assert run.needed(RETENTION_DAYS) <= kept
        assert unread & run.needed(WAITS_MAX_DAYS) <= kept
        if kind == "classic":
            assert set(range(len(run.times))) == kept
    assert seen >= run.needed(RETENTION_DAYS)
    assert run.node.reported == []
    if kind == "stream":
        run.consume("archive")
        for _ in range(3):
            run.pass_(24 * RETENTION_DAYS)
            run.publish(1)
        run.pass_(24)
        assert len(run.kept()) <= 10  # what is old and was read is gone
    run.node.kill()
