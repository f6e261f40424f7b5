"""With configure: exchanges, bindings and arguments that make one step dear."""

from __future__ import annotations

from pamqp import commands

from tests.harness.wire import publish_bytes
from tests.hostile.attacker import Attack
from tests.hostile.mutation import (
    NUMBERS,
    any_table,
    deep_table,
    like_condition,
    size,
    wide_table,
    word,
)


class HeadersBindings(Attack):
    """Thousands of conditions on one headers exchange, of one message's items or of many."""

    finding = "B"
    needs = "configure, write"

    def prepare(self) -> None:
        self.client.declare("q")
        self.client.exchange("e", "headers")
        names = [word(self.rng, 2) for _ in range(self.rng.choice((1, 3, 50)))]
        self.headers = dict.fromkeys(names, 1)
        for number in self.until(0.7):
            wanted = {self.rng.choice(names): self.rng.choice((number, 1))}
            match = self.rng.choice(("all", "any", "any-with-x"))
            self.client.bind("q", "e", "", **{"x-match": match, **wanted})

    def strike(self) -> None:
        headers = {**self.headers, word(self.rng): self.rng.randrange(1000)}
        self.client.put("e", word(self.rng), count=50, headers=headers)


class TopicPatterns(Attack):
    """Patterns that all begin alike or not at all, and keys that go through all of them."""

    finding = "B"
    needs = "configure, write"

    def prepare(self) -> None:
        self.client.declare("q")
        self.client.exchange("e", "topic")
        self.words = self.rng.randrange(5, 16)
        for _ in self.until(0.7):
            pattern = ".".join(self.rng.choices("*a#", (5, 5, self.rng.random()), k=self.words))
            self.client.bind("q", "e", pattern + self.rng.choice((".#", "")))

    def strike(self) -> None:
        tail = ".".join(word(self.rng, 2) for _ in range(self.rng.randrange(5)))
        key = ".".join(["a"] * self.words) + "." + tail
        self.client.put("e", key)


class ExchangeGraph(Attack):
    """Exchanges that all lead to each other, and a new key each time."""

    finding = "B"
    needs = "configure, write, read"

    def prepare(self) -> None:
        self.client.declare("q")
        names: list[str] = []
        for number in self.until(0.8):
            name = f"e{number}"
            self.client.exchange(name, self.rng.choice(("fanout", "fanout", "topic")))
            for other in self.rng.sample(names, min(len(names), 100)):
                self.client.link(name, other, "#")
                self.client.link(other, name, "#")
            names.append(name)
        self.client.bind("q", names[-1], "#")

    def strike(self) -> None:
        keys = [word(self.rng) for _ in range(50)]
        self.client.send_bytes(b"".join(publish_bytes(key, b"", exchange="e0") for key in keys))


class CopiesToMany(Attack):
    """CC and BCC of many keys to an exchange that leads to many queues."""

    finding = "B"
    needs = "configure, write"

    def prepare(self) -> None:
        self.client.exchange("e", "fanout")
        for number in self.until(0.1):
            self.client.declare(f"q{number}", durable=self.rng.random() < 0.5)
            self.client.bind(f"q{number}", "e")

    def strike(self) -> None:
        count = self.rng.choice((10, 900, 999, 1000, 5000))
        prefix = self.rng.choice(("", "", "amq.rabbitmq.reply-to."))
        keys = [prefix + word(self.rng, 2) for _ in range(count)]
        exchange = "" if prefix else "e"
        self.client.put(exchange, "k", headers={self.rng.choice(("CC", "BCC")): keys})


class BindingFilters(Attack):
    """Bindings whose conditions are all LIKEs, and headers to compare them with."""

    finding = "B"
    needs = "configure, write"

    def prepare(self) -> None:
        self.client.declare("q")
        self.client.exchange("e", "fanout")
        self.names = [word(self.rng, 2) + "x" for _ in range(5)]
        for number in self.until(0.3):
            condition = like_condition(self.rng, self.names, self.rng.choice((20, 200, 1000, 4000)))
            self.client.bind("q", "e", str(number), **{"x-filter-sql": condition})

    def strike(self) -> None:
        text = word(self.rng, size(self.rng, 20_000), "ab")
        self.client.put("e", "k", headers=dict.fromkeys(self.names, text))


class BindingsDeleted(Attack):
    """Exchanges with many bindings that are made, deleted, and made again."""

    finding = "B"
    needs = "configure, write, read"

    def strike(self) -> None:
        client = self.client
        kind = self.rng.choice(("topic", "direct", "headers", "fanout"))
        client.exchange("e", kind)
        client.declare("q")
        for number in range(self.rng.randrange(200, 2000)):
            client.bind("q", "e", f"{word(self.rng, 3)}.{number}")
        gone = commands.Queue.Delete(queue="q")
        client.call(1, self.rng.choice((gone, commands.Exchange.Delete(exchange="e"))))


class BindAndUnbind(Attack):
    finding = "B"
    needs = "configure, write, read"

    def prepare(self) -> None:
        self.client.declare("q")
        self.client.exchange("e", self.rng.choice(("topic", "direct", "headers")))
        self.keys = [f"{word(self.rng, 2)}.{number}" for number in range(2000)]

    def strike(self) -> None:
        for key in self.rng.sample(self.keys, 100):
            self.client.bind("q", "e", key)
            if self.rng.random() < 0.5:
                self.client.call(1, commands.Queue.Unbind(0, "q", "e", key))


class AlternateChains(Attack):
    """Exchanges that lead nowhere, each with the next one for what it cannot route."""

    finding = "B"
    needs = "configure, write, read"

    def prepare(self) -> None:
        for number in self.until(0.5):
            last = number - 1 if self.rng.random() < 0.95 else number + 1
            kind = self.rng.choice(("direct", "fanout", "topic", "headers"))
            self.client.exchange(f"e{number}", kind, **{"alternate-exchange": f"e{last}"})
            self.last = number

    def strike(self) -> None:
        name = f"e{self.last}"
        keys = [word(self.rng) for _ in range(50)]
        self.client.send_bytes(b"".join(publish_bytes(key, b"", exchange=name) for key in keys))


class ConsistentHashes(Attack):
    finding = "B"
    needs = "configure, write"

    def prepare(self) -> None:
        self.client.exchange("e", "x-consistent-hash")
        for number in self.until(0.6):
            name = f"q{number % 900}"
            if number < 900:
                self.client.declare(name)
            weight = self.rng.choice((1, 2, 100, 1_000_000))
            self.client.bind(name, "e", str(weight))

    def strike(self) -> None:
        keys = [word(self.rng) for _ in range(50)]
        self.client.send_bytes(b"".join(publish_bytes(key, b"", exchange="e") for key in keys))


class BigArguments(Attack):
    """Declarations whose arguments mean nothing and are kept."""

    finding = "H"
    needs = "configure"

    def strike(self) -> None:
        table = wide_table(self.rng, size(self.rng, 125_000))
        self.client.declare_raw(word(self.rng), table)
        self.client.call(1, commands.Basic.Qos())  # the declaration itself has no answer


class DeepAndWideTables(Attack):
    finding = "H"
    needs = "configure, write"

    def strike(self) -> None:
        table = self.rng.choice((any_table, deep_table))(self.rng, 100_000)
        if self.rng.random() < 0.5:
            self.client.declare_raw(word(self.rng), table)
        else:
            self.client.put_table("amq.headers", "k", table)
        self.client.call(1, commands.Basic.Qos())


class ArgumentsOfAllSorts(Attack):
    """Known arguments with values at every boundary."""

    finding = "H"
    needs = "configure"
    names = (
        "x-message-ttl",
        "x-expires",
        "x-max-length",
        "x-max-length-bytes",
        "x-max-priority",
        "x-overflow",
        "x-queue-type",
        "x-queue-mode",
        "x-dead-letter-exchange",
        "x-delivery-limit",
        "x-dedup-window",
        "x-retention",
        "x-retry-delays",
        "x-retry-delay",
        "x-visibility-timeout",
        "x-group-ordering",
    )

    def strike(self) -> None:
        values = [*NUMBERS, "", "x" * 300, True, None, [], {}, [1] * 100, "quorum", "stream"]
        chosen = self.rng.sample(self.names, self.rng.randrange(1, 4))
        self.client.declare(word(self.rng), **{name: self.rng.choice(values) for name in chosen})


class ManyQueues(Attack):
    finding = "H"
    needs = "configure, write"

    def strike(self) -> None:
        client, names = self.client, [word(self.rng) for _ in range(200)]
        durable = self.rng.random() < 0.5
        for name in names:
            client.send(1, commands.Queue.Declare(queue=name, durable=durable, nowait=True))
            client.put("", name)
        for name in self.rng.sample(names, 100):
            client.send(1, commands.Queue.Delete(queue=name, nowait=True))
        client.call(1, commands.Basic.Qos())


class ExclusiveQueuesLeft(Attack):
    """Queues that all go at once, when their connection does."""

    finding = "B"
    needs = "configure, write"

    def strike(self) -> None:
        client = self.connect()
        for number in range(self.rng.randrange(100, 3000)):
            name = f"{word(self.rng)}{number}"
            client.send(1, commands.Queue.Declare(queue=name, exclusive=True, nowait=True))
            client.bind(name, "amq.topic", f"*.{number}")
        client.call(1, commands.Basic.Qos())
        client.hang_up()
