"""With read: consumers, acknowledgements in every order, connections that end with much held."""

from __future__ import annotations

import time

from pamqp import commands

from tests.harness.wire import Delivery, Method, frame_bytes, publish_bytes
from tests.hostile.attacker import Attack
from tests.hostile.mutation import like_condition, size, word

ACK, REJECT, NACK = 80, 90, 120


class Holding(Attack):
    """Not an attack by itself: many deliveries for few bytes, by a fanout to many queues."""

    finding = "B"
    needs = "configure, write, read"
    queues = 100

    def prepare(self) -> None:
        self.client.exchange("e", "fanout")
        for number in range(self.queues):
            self.client.declare(f"q{number}")
            self.client.bind(f"q{number}", "e")
        self.tags: list[int] = []

    def fill(self, messages: int) -> None:
        """Publish to all, consume all, and take in what comes."""
        self.client.put("e", "", count=messages)
        self.failed()
        for number in range(self.queues):
            self.client.take(f"q{number}", number)
        self.tags = []
        deadline = time.monotonic() + 60
        while len(self.tags) < messages * self.queues and time.monotonic() < deadline:
            self.tags += [one.tag for one in self.client.events(0.1) if isinstance(one, Delivery)]


Attack.every.remove(Holding)


class AcksInAnyOrder(Holding):
    def strike(self) -> None:
        self.fill(self.rng.randrange(10, 500))
        tags = self.rng.sample(self.tags, min(len(self.tags), 5000))
        self.client.settle([(ACK, tag, 0) for tag in tags])
        self.client.call(1, commands.Basic.Qos())


class NacksInAnyOrder(Holding):
    """Some of them multiple, some putting back."""

    def strike(self) -> None:
        self.fill(self.rng.randrange(10, 200))
        tags = sorted(self.tags)
        while tags and len(tags) > len(self.tags) // 4:
            at, put_back = self.rng.randrange(len(tags)), self.rng.choice((0, 2))
            if self.rng.random() < 0.01:
                self.client.settle([(NACK, tags[at // 10], put_back | 1)])
                del tags[: at // 10 + 1]
            else:
                self.client.settle([(NACK, tags.pop(at), put_back)])
        self.client.drain()
        self.client.call(1, commands.Basic.Qos())


class Recovering(Holding):
    """All is asked for again, with holes in it."""

    def strike(self) -> None:
        self.fill(self.rng.randrange(10, 200))
        for _ in range(5):
            tags = self.rng.sample(self.tags, min(len(self.tags), 300))
            self.client.settle([(self.rng.choice((ACK, REJECT)), tag, 0) for tag in tags])
            self.client.call(1, commands.Basic.Recover(requeue=True))
            self.tags = [
                one.tag for one in self.client.events(0.3) if isinstance(one, Delivery)
            ] or self.tags[:0]


class HolesAndHangingUp(Holding):
    def strike(self) -> None:
        self.fill(self.rng.randrange(10, 500))
        step = self.rng.choice((2, 3, 7))
        tags = self.tags[::step][:10_000]
        self.rng.shuffle(tags)
        self.client.settle([(ACK, tag, 0) for tag in tags])
        self.failed()


class FilteredConsumers(Attack):
    """Conditions of LIKEs, on messages with long headers."""

    finding = "B"
    needs = "configure, write, read"

    def prepare(self) -> None:
        self.names = [word(self.rng, 2) + "x" for _ in range(5)]
        self.client.declare("q")
        for _ in self.until(0.5):
            text = word(self.rng, size(self.rng, 8000), "ab")
            self.client.put("", "q", headers={self.rng.choice(self.names): text})

    def strike(self) -> None:
        condition = like_condition(self.rng, self.names, self.rng.choice((500, 4000)))
        arguments = {"x-filter-sql": condition}
        tag = word(self.rng)
        consume = commands.Basic.Consume(queue="q", consumer_tag=tag, arguments=arguments)
        self.client.call(1, consume)
        self.client.call(1, commands.Basic.Cancel(consumer_tag=tag))
        self.client.call(1, commands.Basic.Recover(requeue=True))


class ManyConsumers(Attack):
    """Thousands of consumers that each qos and each message may wake."""

    finding = "B"
    needs = "configure, write, read"

    def prepare(self) -> None:
        for number in range(10):
            self.client.declare(f"q{number}")
        for number in self.until(0.6):
            self.client.take(f"q{number % 10}", number)

    def strike(self) -> None:
        choice = self.rng.randrange(3)
        client = self.client
        if choice == 0:
            for _ in range(100):
                client.send(
                    1, commands.Basic.Qos(0, self.rng.randrange(100), self.rng.random() < 0.5)
                )
        elif choice == 1:
            client.put("", f"q{self.rng.randrange(10)}", count=50)
        else:
            for number in self.rng.sample(range(5000), 50):
                client.send(1, commands.Basic.Cancel(f"c{number}", nowait=True))
        client.call(1, commands.Basic.Qos())


class ConsumersOfStreams(Attack):
    """Readers of one stream from its beginning, again and again."""

    finding = "B"
    needs = "configure, write, read"

    def prepare(self) -> None:
        self.client.declare("q", **{"x-queue-type": "stream"})
        for _ in self.until(0.4):
            self.client.put("", "q", word(self.rng, size(self.rng, 500)).encode(), count=20)

    def strike(self) -> None:
        client = self.connect()
        client.qos(self.rng.choice((1, 100, 65_535)))
        for number in range(self.rng.randrange(1, 100)):
            offset = self.rng.choice(("first", "last", "next", self.rng.randrange(1000)))
            client.take("q", number, **{"x-stream-offset": offset})
        client.drain()


class ChannelsInLoops(Attack):
    finding = "B"
    needs = "nothing but the login"

    def strike(self) -> None:
        numbers = self.rng.sample(range(2, 2000), 300)
        data = b""
        for number in numbers:
            data += frame_bytes(1, number, b"\x00\x14\x00\x0a\x00")
            if self.rng.random() < 0.5:
                data += frame_bytes(1, number, b"\x00\x14\x00\x28\x00\xc8\x00\x00\x00\x00\x00")
        self.client.send_bytes(data)
        self.client.call(1, commands.Basic.Qos())
        self.failed()


class GetsInLoops(Attack):
    """basic.get of every queue there is and is not, and what is got never acknowledged."""

    finding = "B"
    needs = "configure, write, read"

    def prepare(self) -> None:
        for number in range(20):
            self.client.declare(f"q{number}", durable=False)
            self.client.put("", f"q{number}", b"x" * 500, count=5)

    def strike(self) -> None:
        get = b"\x00\x3c\x00\x46\x00\x00\x03q%02d\x00"
        data = [
            frame_bytes(1, 1, (get % self.rng.randrange(20)).replace(b"\x03q0", b"\x02q"))
            for _ in range(500)
        ]
        self.client.send_bytes(b"".join(data))
        self.client.drain()


class GroupsInOrder(Attack):
    """One group a message, or one for all, given back and taken again."""

    finding = "B"
    needs = "configure, write, read"

    def prepare(self) -> None:
        self.client.declare("q", **{"x-group-ordering": True})
        groups = self.rng.choice((1, 10, 10_000))
        for _ in self.until(0.6):
            headers = {"x-message-group": str(self.rng.randrange(groups))}
            properties = commands.Basic.Properties(headers=headers).marshal()
            self.client.send_bytes(publish_bytes("q", b"", properties=properties) * 5)

    def strike(self) -> None:
        self.client.send(1, commands.Basic.Consume(queue="q", nowait=True))
        tags = [one.tag for one in self.client.events(0.1) if isinstance(one, Delivery)]
        self.rng.shuffle(tags)
        self.client.settle([(NACK, tag, 2) for tag in tags[:1000]])
        self.client.call(1, commands.Basic.Recover(requeue=True))


class RejectedAgain(Attack):
    """Retries without delay and without end."""

    finding = "B"
    needs = "configure, write, read"

    def prepare(self) -> None:
        arguments = {"x-retry-delays": [0, 1], "x-retry-max-attempts": 1000}
        self.client.declare("q", **self.rng.choice((arguments, {"x-delivery-limit": 1000})))
        self.client.put("", "q", count=500)
        self.client.take("q", 0)

    def strike(self) -> None:
        came = list(self.client.events(0.05))
        tags = [one.tag for one in came if isinstance(one, Delivery)]
        put_back = self.rng.choice((0, 2))
        self.client.settle([(NACK, tag, put_back) for tag in tags[:500]])
        if any(isinstance(one, Method) for one in came) or not tags:
            self.client.call(1, commands.Basic.Recover(requeue=True))
