"""Partitioned queues against a naive model, through changes of partitions, closes and kills."""

from __future__ import annotations

import asyncio
from collections import defaultdict

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from pamqp import commands
from pamqp.header import ContentHeader

from leveret.features.topics.layout import resized
from leveret.features.topics.partition_changes import LOOK_MS
from leveret.ports.definitions import PartitionLayout
from leveret.ports.partitioner import hash_key
from tests.recovery.node import Node
from tests.support.client import Client
from tests.support.examples import examples

KEYS = st.integers(0, 5)
COUNTS = st.integers(1, 5)
TWO_LOOKS_SECONDS = 2 * LOOK_MS / 1000 + 0.1


class PartitionMachine(RuleBasedStateMachine):
    """One node and its next lives; the queue's messages are numbers with a key."""

    arguments: dict[str, object] = {}

    @initialize(count=COUNTS)
    def begin(self, count: int) -> None:
        self.loop = asyncio.new_event_loop()
        self.node = Node(self.loop)
        self.layout = PartitionLayout(tuple(range(count)), (), count)
        self.number = 0
        self.keys: dict[int, int] = {}  # of each message
        self.places: dict[int, int] = {}  # partition of each message
        self.node.client.declare(
            "q", durable=True, arguments={"x-partitions": count, **self.arguments}
        )
        self.opened()

    def opened(self) -> None:
        """Prepare the client of a new life."""
        assert self.node.client.call(commands.Confirm.Select()).name == "Confirm.SelectOk"

    @property
    def queue(self):
        return self.node.queue("q")

    def teardown(self) -> None:
        if hasattr(self, "node"):
            assert self.node.reported == []
            self.node.kill()
            self.loop.close()

    @rule(keys=st.lists(KEYS, min_size=1, max_size=8))
    def publish(self, keys: list[int]) -> None:
        for key in keys:
            headers = {"x-partition-key": f"key-{key}"}
            self.node.publish("q", b"%d" % self.number, headers=headers)
            active = self.layout.active
            self.keys[self.number] = key
            self.places[self.number] = active[hash_key(f"key-{key}".encode()) % len(active)]
            self.number += 1
        acks = [value for _, value in self.node.client.received()]
        assert [ack.name for ack in acks] == ["Basic.Ack"] * len(acks)
        assert acks

    @rule(count=COUNTS)
    def resize(self, count: int) -> None:
        partitions = self.node.broker.partitions
        layout = partitions.planned(self.queue, count)
        assert layout == resized(self.layout, count)
        self.loop.run_until_complete(partitions.apply(self.queue, layout))
        self.node.run()
        self.layout = layout

    def read(self) -> set[int]:
        """Numbers of the retired partitions of which nothing is left, by the model."""
        raise NotImplementedError

    @rule()
    def wait(self) -> None:
        self.node.advance(TWO_LOOKS_SECONDS)
        gone = self.read()
        retired = tuple(number for number in self.layout.retired if number not in gone)
        self.layout = PartitionLayout(self.layout.active, retired, self.layout.made)

    @rule()
    def close(self) -> None:
        self.ended()
        self.node.close()
        self.node = self.node.next_life()
        self.opened()

    @rule()
    def kill(self) -> None:
        self.node.flush()
        self.ended()
        self.node.kill()
        self.node = self.node.next_life()
        self.opened()

    def ended(self) -> None:
        """Note in the model that all connections are lost."""

    @invariant()
    def partitions_are_those_of_the_model(self) -> None:
        if hasattr(self, "node"):
            assert self.queue.layout == self.layout
            assert [part.number for part in self.queue.partitions] == list(self.layout.present)


class QueueMachine(PartitionMachine):
    """A classic queue: each message is got once, and is where its key belongs."""

    @initialize()
    def begin_empty(self) -> None:
        self.held: dict[int, int] = {}  # delivery tags of messages that were got

    @rule(count=st.integers(1, 6))
    def get(self, count: int) -> None:
        for _ in range(count):
            self.node.client.send(commands.Basic.Get(queue="q"))
            answer = self.node.client.received()
            if answer[0][1].name == "Basic.GetEmpty":
                assert set(self.places) == set(self.held)
                return
            number = int(answer[2][1].value)
            assert number in self.places
            assert number not in self.held
            older = [each for each in self.places if each not in self.held and each < number]
            assert not [each for each in older if self.places[each] == self.places[number]]
            self.held[number] = answer[0][1].delivery_tag

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def acknowledge(self, data) -> None:
        number = data.draw(st.sampled_from(sorted(self.held)))
        self.node.client.send(commands.Basic.Ack(self.held.pop(number)))
        del self.places[number]

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def return_(self, data) -> None:
        number = data.draw(st.sampled_from(sorted(self.held)))
        self.node.client.send(commands.Basic.Nack(self.held.pop(number), requeue=True))

    def read(self) -> set[int]:
        return set(self.layout.retired) - set(self.places.values())

    def ended(self) -> None:
        self.held.clear()

    @invariant()
    def every_message_is_where_its_key_belongs(self) -> None:
        if not hasattr(self, "held") or not hasattr(self, "node"):
            return
        found = {}
        for part in self.queue.partitions:
            if not part.is_opened:
                continue
            for first, stop in part.log.settled.gaps(0, part.log.committed):
                for offset in range(first, stop):
                    found[int(self.node._record(part.log, offset)[-1])] = part.number
        assert found == self.places
        assert self.queue.message_count == len(self.places) - len(self.held)


class LimitedQueueMachine(QueueMachine):
    """A queue with a length limit, which all partitions are held to together."""

    LIMIT = 6
    arguments = {"x-max-length": LIMIT}

    @rule(keys=st.lists(KEYS, min_size=1, max_size=8))
    def publish(self, keys: list[int]) -> None:
        super().publish(keys)
        present = {
            int(self.node._record(part.log, offset)[-1])
            for part in self.queue.partitions
            if part.is_opened
            for first, stop in part.log.settled.gaps(0, part.log.committed)
            for offset in range(first, stop)
        }
        dropped = set(self.places) - present
        assert not dropped & set(self.held)
        kept = len(self.places) - len(self.held) - len(dropped)
        assert kept == min(self.LIMIT, len(self.places) - len(self.held))
        for number in dropped:  # the head of a partition, never something behind what is kept
            assert not [
                each
                for each in present - set(self.held)
                if self.places[each] == self.places[number] and each < number
            ]
        for number in dropped:
            del self.places[number]

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def return_(self, data) -> None:
        """Return nothing: what is dropped then is shown elsewhere."""

    @rule()
    def kill(self) -> None:
        """Come back with what was held only where that fits."""
        if not self.held:
            super().kill()

    @rule()
    def close(self) -> None:
        if not self.held:
            super().close()


class GroupMachine(PartitionMachine):
    """A stream with a group of two members: it gets everything, each partition in order."""

    arguments = {"x-queue-type": "stream"}

    def opened(self) -> None:
        super().opened()
        if not hasattr(self, "settled"):
            self.settled: set[int] = set()
            self.last: dict[int, int] = defaultdict(lambda: -1)  # settled, by partition
        self.members: dict[int, Client] = {}
        self.held: dict[tuple[int, int], int] = {}  # messages by member and tag

    def join_(self, member: int) -> None:
        client = self.members[member] = Client(self.node).open()
        client.prefetch(3)
        client.consume("q", "c", arguments={"x-consumer-group": "g", "x-stream-offset": "first"})

    @rule(member=st.integers(0, 1))
    def join(self, member: int) -> None:
        if member not in self.members:
            self.join_(member)
            self.receive()

    @rule(member=st.integers(0, 1))
    def leave(self, member: int) -> None:
        client = self.members.pop(member, None)
        if client is not None:
            client.transport.lose()
            self.node.run()
            self.held = {place: number for place, number in self.held.items() if place[0] != member}
            self.receive()

    def receive(self) -> None:
        """Take what the members were delivered."""
        for member, client in self.members.items():
            frames = [value for _, value in client.received()]
            for deliver, header, body in zip(frames[::3], frames[1::3], frames[2::3], strict=True):
                assert isinstance(header, ContentHeader)
                number, partition = int(body.value), header.properties.headers["x-partition"]
                assert self.places[number] == partition
                assert number not in self.held.values()
                assert number not in self.settled
                self.held[member, deliver.delivery_tag] = number
        owners = defaultdict(set)
        for (member, _), number in self.held.items():
            owners[self.places[number]].add(member)
        assert all(len(found) == 1 for found in owners.values())

    @rule(member=st.integers(0, 1))
    def acknowledge(self, member: int) -> None:
        self.receive()
        tags = [tag for of, tag in self.held if of == member]
        if tags:
            self.members[member].send(commands.Basic.Ack(max(tags), multiple=True))
            self.settled |= {self.held.pop((member, tag)) for tag in tags}
            self.receive()

    @rule()
    def read_all(self) -> None:
        """Let a member read everything: nothing is missing, each partition is in order."""
        self.join(0)
        self.receive()
        reached: dict[int, int] = {}
        for _ in range(200):
            for (_, _), number in sorted(self.held.items()):
                place = self.places[number]
                assert reached.get(place, -1) < number
                reached[place] = number
            if not self.held:
                break
            for member in list(self.members):
                tags = [tag for of, tag in self.held if of == member]
                if tags:
                    self.members[member].send(commands.Basic.Ack(max(tags), multiple=True))
                    self.settled |= {self.held.pop((member, tag)) for tag in tags}
            self.receive()
        assert self.settled == set(self.places)

    @rule(keys=st.lists(KEYS, min_size=1, max_size=8))
    def publish(self, keys: list[int]) -> None:
        super().publish(keys)
        self.receive()

    @rule(count=COUNTS)
    def resize(self, count: int) -> None:
        super().resize(count)
        self.receive()

    def read(self) -> set[int]:
        # A stream's records stay for the time of its retention.
        return set(self.layout.retired) - set(self.places.values())

    def teardown(self) -> None:
        if hasattr(self, "node"):
            self.read_all()
        super().teardown()


FEW = settings(max_examples=examples(40), stateful_step_count=25)
TestQueue = QueueMachine.TestCase
TestQueue.settings = FEW
TestLimitedQueue = LimitedQueueMachine.TestCase
TestLimitedQueue.settings = FEW
TestGroup = GroupMachine.TestCase
TestGroup.settings = FEW
