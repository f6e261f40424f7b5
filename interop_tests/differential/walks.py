"""Conversations that nobody has written: seeded walks over the methods of one connection.

A walk declares, binds, publishes, gets, settles and deletes a few things by chance, right and
wrong, and every answer is compared with RabbitMQ's. It waits for each confirm, so that what is in a
queue never depends on who was faster. Some walks have queues with limits, priorities and dead
letters; those wait a moment after each step, for dead letters travel by themselves.
"""

from __future__ import annotations

import random
import time
from typing import TYPE_CHECKING, Any

from pamqp import commands

from interop_tests.brokers import IN_CLUSTER
from interop_tests.differential.client import unchecked

if TYPE_CHECKING:
    from collections.abc import Callable

    from interop_tests.differential.client import Channel
    from interop_tests.differential.talk import Talk

STEPS = 120
SEEDS = range(1, 9)
DEAD_LETTER_SECONDS = 0.05
REQUEUE_SECONDS = 0.1  # RabbitMQ puts back what a closed channel held when it gets to it
QUEUES = ("q1", "q2", "q3")
EXCHANGES = ("x1", "x2", "x3")
TYPES = ("direct", "fanout", "topic", "headers")
KEYS = ("a", "b", "a.b", "a.*", "#", "")
ARGUMENTS: list[dict[str, Any]] = [{}, {}, {"a": 1}, {"x-match": "any", "a": 1, "b": "two"}]
HEADERS: list[dict[str, Any] | None] = [None, {"a": 1}, {"b": "two"}, {"a": 2}]


class Walk:
    """One walk; each public method is a step that chance may choose."""

    def __init__(self, talk: Talk, seed: int, *, featured: bool) -> None:
        self.talk = talk
        self.random = random.Random(seed)
        self.featured = featured
        self.arguments = {name: self._features() if featured else {} for name in QUEUES}
        self.connection = talk.connection()
        self.number = 0
        self.published = 0
        self.delivered = 0
        self.channel: Channel
        self.open_channel()
        for queue in QUEUES:
            self.channel.declare(talk.name(queue), arguments=self.arguments[queue])
        for exchange, kind in zip(EXCHANGES, self.random.sample(TYPES, 3), strict=True):
            self.channel.exchange(talk.name(exchange), kind)

    def open_channel(self) -> None:
        """Begin on a channel of its own, with confirms."""
        self.number += 1
        self.published = self.delivered = 0
        self.channel = self.connection.channel(self.number)
        self.channel.call(commands.Confirm.Select())

    def step(self) -> None:
        """Do something, and go on with a new channel if it was wrong."""
        traffic = [self.publish] * 12 + [self.get] * 8 + [self.settle] * 6
        topology = [
            *([self.bind_queue] * 4 + [self.bind_exchange] * 3 + [self.unbind] * 2),
            *([self.declare_queue] * 2 + [self.declare_exchange] * 2 + [self.recover]),
            *(self.delete_queue, self.delete_exchange, self.purge, self.close),
        ]
        steps = traffic * 6 + topology if self.featured else traffic + topology
        answer = self.random.choice(steps)()
        if self.featured:
            time.sleep(DEAD_LETTER_SECONDS)
        if isinstance(answer, commands.Channel.Close):
            time.sleep(REQUEUE_SECONDS)
            self.open_channel()

    def _features(self) -> dict[str, Any]:
        """Arguments of a queue: what it does with too many, with the urgent and with the dead."""
        features: dict[str, Any] = self.random.choice(
            [{}, {"x-max-length": 2}, {"x-max-length-bytes": 7}, {"x-max-priority": 3}]
        )
        if self.flag(0.7):
            features = {**features, "x-dead-letter-exchange": self.exchange(0.8)}
            if self.flag(0.8):
                features["x-dead-letter-routing-key"] = self.queue()
        overflow = self.random.choice(["drop-head", "reject-publish", "reject-publish-dlx", None])
        return features if overflow is None else {**features, "x-overflow": overflow}

    def queue(self) -> str:
        """The name of some queue."""
        return self.talk.name(self.random.choice(QUEUES))

    def exchange(self, default: float = 0.02) -> str:
        """The name of some exchange, seldom of the default one."""
        return "" if self.flag(default) else self.talk.name(self.random.choice(EXCHANGES))

    def flag(self, chance: float = 0.2) -> bool:
        """Whether something is asked for that mostly is not."""
        return self.random.random() < chance

    def call(self, method: type, **fields: object) -> object:
        """Send a method with any values and return the answer."""
        return self.channel.call(unchecked(method, **fields))

    def declare_queue(self) -> object:
        word = self.random.choice(QUEUES)
        return self.call(
            commands.Queue.Declare,
            queue=self.talk.name(word),
            passive=self.flag(0.5),
            durable=self.flag(0.1) != IN_CLUSTER,  # as the channel declares, mostly
            auto_delete=self.flag(0.1),
            arguments=self.arguments[word],
        )

    def declare_exchange(self) -> object:
        alternate = {"alternate-exchange": self.exchange()} if self.flag(0.4) else {}
        return self.call(
            commands.Exchange.Declare,
            exchange=self.exchange(),
            exchange_type=self.random.choice(TYPES),
            passive=self.flag(0.5),
            auto_delete=self.flag(),
            internal=self.flag(0.05),
            arguments=alternate,
        )

    def bind_queue(self) -> object:
        return self.call(
            commands.Queue.Bind,
            queue="" if self.flag(0.1) else self.queue(),
            exchange=self.exchange(),
            routing_key=self.random.choice(KEYS),
            arguments=self.random.choice(ARGUMENTS),
        )

    def unbind(self) -> object:
        if self.flag(0.5):
            return self._exchanges(commands.Exchange.Unbind)
        return self.call(
            commands.Queue.Unbind,
            queue=self.queue(),
            exchange=self.exchange(),
            routing_key=self.random.choice(KEYS),
            arguments=self.random.choice(ARGUMENTS),
        )

    def bind_exchange(self) -> object:
        return self._exchanges(commands.Exchange.Bind)

    def _exchanges(self, method: type) -> object:
        return self.call(
            method,
            destination=self.exchange(),
            source=self.exchange(),
            routing_key=self.random.choice(KEYS),
            arguments=self.random.choice(ARGUMENTS),
        )

    def publish(self) -> object:
        """Publish, and read up to the confirm or the channel's end."""
        self.channel.publish(
            self.exchange(0.8 if self.featured else 0.3),
            self.random.choice([*KEYS, *(self.queue() for _ in KEYS * 3)]),
            b"%d" % self.random.randrange(1000),
            mandatory=self.flag(0.5),
            headers=self._headers(),
            delivery_mode=2 if self.flag() else None,
            priority=self.random.randrange(6) if self.featured and self.flag(0.5) else None,
        )
        self.published += 1
        answer = self.channel.read_answer()
        if isinstance(answer, commands.Basic.Return):
            answer = self.channel.read_answer()
        return answer

    def _headers(self) -> dict[str, Any] | None:
        if self.featured and self.flag():
            keys = [self.queue(), self.random.choice(KEYS)]
            return {self.random.choice(["CC", "BCC"]): keys, "a": 1}
        return self.random.choice(HEADERS)

    def get(self) -> object:
        answer = self.call(commands.Basic.Get, queue=self.queue(), no_ack=self.flag())
        self.delivered += isinstance(answer, commands.Basic.GetOk)
        return answer

    def settle(self) -> object:
        """Settle some tag, mostly one that there is; basic.qos shows when that has been done."""
        if not self.delivered:
            return None
        tag = self.delivered - self.flag(0.3) + self.flag(0.05)
        multiple, requeue = self.flag(0.3) or not tag, self.flag(0.3 if self.featured else 0.8)
        if self.flag(0.5):
            self.channel.ack(tag, multiple=multiple)
        elif self.flag(0.5):
            self.channel.nack(tag, multiple=multiple, requeue=requeue)
        else:
            self.channel.reject(tag, requeue=requeue)
        return self.channel.qos(0)

    def recover(self) -> object:
        return self.call(commands.Basic.Recover, requeue=True)

    def purge(self) -> object:
        return self.call(commands.Queue.Purge, queue=self.queue())

    def delete_queue(self) -> object:
        return self.call(
            commands.Queue.Delete, queue=self.queue(), if_unused=self.flag(), if_empty=self.flag()
        )

    def delete_exchange(self) -> object:
        return self.call(
            commands.Exchange.Delete, exchange=self.exchange(), if_unused=self.flag(0.5)
        )

    def close(self) -> object:
        self.channel.close()
        time.sleep(REQUEUE_SECONDS)
        self.open_channel()
        return None


def walk(seed: int, *, featured: bool = False) -> Callable[[Talk], None]:
    """The conversation of one seed."""

    def conversation(talk: Talk) -> None:
        walker = Walk(talk, seed, featured=featured)
        for _ in range(STEPS):
            walker.step()

    conversation.__name__ = f"walk_{seed}{'_featured' * featured}"
    return conversation
