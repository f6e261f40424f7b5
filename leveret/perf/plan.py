"""Plan of a run, from its options: names, keys, and the shares of the processes."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from urllib.parse import unquote, urlsplit

from leveret.errors import LeveretError
from leveret.perf.options import Mode, Options

__all__ = [
    "UNLIMITED",
    "Address",
    "LoadPlan",
    "PlanError",
    "PlannedBinding",
    "PublisherPlan",
    "Share",
]

NUMBER_FORMAT = "{:08d}"  # eight digits, so that a burst's keys are all of one length
STAMP_BYTES = 16
PUBLISHERS_MAX = 4096  # twelve bits of a message's identity
KEYS_MAX = 1 << 20  # twenty bits of it
CHANNELS_MAX = 2047
VERIFIED_STREAMS_MAX = 1 << 24  # sixteen bytes each: 256 MB
UNLIMITED = 1 << 62  # messages; no run lives to see it
DURATION_S = 10  # of a run that would otherwise never end
FRAME_BYTES_MAX = 131072  # asked for in tune-ok; what RabbitMQ and Leveret offer


class PlanError(LeveretError):
    """The options contradict one another; the text says which."""


@dataclass(frozen=True)
class Address:
    """Address, credentials and virtual host of the broker."""

    host: str
    port: int
    user: str
    password: str
    vhost: str

    @classmethod
    def parse(cls, uri: str) -> Address:
        """Parse `amqp://user:password@host:port/vhost`, with defaults for missing parts."""
        parts = urlsplit(uri)
        if parts.scheme != "amqp":
            raise PlanError(f"{uri}: only amqp:// is supported")
        try:
            port = parts.port or 5672
        except ValueError as error:
            raise PlanError(f"{uri}: {error}") from error
        return cls(
            host=parts.hostname or "127.0.0.1",
            port=port,
            user=unquote(parts.username or "guest"),
            password=unquote(parts.password or "guest"),
            vhost=unquote(parts.path[1:]) or "/",
        )


@dataclass(frozen=True)
class PlannedBinding:
    """One binding of a queue to the plan's exchange."""

    queue: str
    key: str


@dataclass(frozen=True)
class PublisherPlan:
    """One publisher: its identity, the numbers in its keys, and its quota."""

    identity: int
    first: int
    step: int
    seed: int | None
    quota: int


@dataclass(frozen=True)
class LoadPlan(Options):
    """The options of one run, and what follows from them."""

    @property
    def address(self) -> Address:
        """Address of the broker."""
        return Address.parse(self.uri)

    @property
    def queue_count(self) -> int:
        """Number of queues: a fanout has one for each copy."""
        return self.fanout or self.queues

    @property
    def queue_names(self) -> list[str]:
        """Names of the queues."""
        return [self.queue_name(number) for number in range(self.queue_count)]

    @property
    def consumed_names(self) -> list[str]:
        """Names of the queues that consumers consume from."""
        return [self.consumed_name(number) for number in range(self.queue_count)]

    def queue_arguments(self, number: int) -> dict[str, object]:
        """Return the arguments that a queue is declared with."""
        arguments = _table(self.queue_argument)
        if self.dead_letters:
            arguments["x-dead-letter-exchange"] = ""
            arguments["x-dead-letter-routing-key"] = self.dead_letter_name(number)
        return arguments | self.type_argument

    @property
    def consumer_arguments(self) -> dict[str, object]:
        """Arguments that consumers are started with."""
        return _table(self.consumer_argument)

    @property
    def readings(self) -> int:
        """Number of times that each message of the queues is consumed by a drain."""
        return self.consumers if self.queue_type == "stream" else 1

    @property
    def type_argument(self) -> dict[str, object]:
        """Argument that every queue is declared with."""
        return {"x-queue-type": self.queue_type} if self.queue_type else {}

    @property
    def exchange(self) -> str:
        """Exchange to publish to; empty for the default exchange."""
        return self.name if self.fanout or self.exchange_type else ""

    @property
    def declared_exchange_type(self) -> str:
        """Type of `exchange`."""
        return "fanout" if self.fanout else self.exchange_type

    @property
    def queues_durable(self) -> bool:
        """Whether queues are durable: as given, else for persistent messages or special types."""
        if self.durable is not None:
            return self.durable
        return self.persistent or self.queue_type != "classic"

    @property
    def numbers(self) -> int:
        """Number of different numbers in routing keys."""
        if self.fanout:
            return 1
        return (self.bindings or self.queues) if self.exchange_type else self.queues

    @property
    def copies(self) -> int:
        """Number of queues that each message reaches."""
        return self.fanout or 1

    @property
    def stamped(self) -> bool:
        """Whether bodies have room for time and identity."""
        return self.size >= STAMP_BYTES

    @property
    def publisher_count(self) -> int:
        """Number of publishers in this mode."""
        return self.publishers if self.mode in (Mode.FLOW, Mode.FILL) else 0

    @property
    def consumer_count(self) -> int:
        """Number of consumers in this mode."""
        return self.consumers if self.mode in (Mode.FLOW, Mode.DRAIN) else 0

    @property
    def rejecter_count(self) -> int:
        """Number of consumers that reject messages."""
        return self.rejecters if self.mode is Mode.FLOW else 0

    @property
    def key_template(self) -> str:
        """Routing key, with `{}` in the place of a message's number."""
        return self.routing_key if self.exchange else f"{self.name}.{{}}"

    def queue_name(self, number: int) -> str:
        """Return the name of a queue, which is also its key at the default exchange."""
        return f"{self.name}." + NUMBER_FORMAT.format(number)

    def dead_letter_name(self, number: int) -> str:
        """Return the name of the queue for the dead letters of a queue."""
        return f"{self.queue_name(number)}.dead"

    def consumed_name(self, number: int) -> str:
        """Return the name of the queue to consume from, for one that is published to."""
        return self.dead_letter_name(number) if self.dead_letters else self.queue_name(number)

    def binding_list(self) -> list[PlannedBinding]:
        """Return the bindings of the queues to the exchange; none for the default exchange."""
        if not self.exchange:
            return []
        if self.fanout:
            return [PlannedBinding(queue, "") for queue in self.queue_names]
        return [
            PlannedBinding(
                self.queue_name(number % self.queues),
                self.binding_key.replace("{}", NUMBER_FORMAT.format(number)),
            )
            for number in range(self.numbers)
        ]

    def publisher_plan(self, index: int) -> PublisherPlan:
        """Return the plan of publisher `index`; together they send `messages`, to every number."""
        count = self.publisher_count
        quota = self.messages // count + (index < self.messages % count)
        first, step = index % self.numbers, count if count < self.numbers else self.numbers
        seed = index if self.random_keys else None
        return PublisherPlan(index, first, step, seed, quota if self.messages else UNLIMITED)

    def get_quota(self, index: int) -> int:
        """Return the number of messages that consumer `index` gets with basic.get."""
        if not (self.messages and self.mode is Mode.DRAIN):
            return UNLIMITED
        return self.messages // self.consumers + (index < self.messages % self.consumers)

    def consumer_queues(self, index: int) -> list[int]:
        """Return the numbers of the queues that consumer `index` consumes from."""
        return self._spread(index, self.consumers)

    def rejecter_queues(self, index: int) -> list[int]:
        """Return the numbers of the queues whose messages rejecter `index` rejects."""
        return self._spread(index, self.rejecters)

    def _spread(self, index: int, count: int) -> list[int]:
        if count >= self.queue_count:
            return [index % self.queue_count]
        return list(range(index, self.queue_count, count))

    def shares(self) -> list[Share]:
        """Return the plan's shares, one for each process that has a part."""
        members = [("p", index) for index in range(self.publisher_count)]
        members += [("c", index) for index in range(self.consumer_count)]
        members += [("r", index) for index in range(self.rejecter_count)]
        cuts = range(max(1, min(self.processes, len(members))))
        return [
            Share(
                plan=self,
                publishers=tuple(i for kind, i in members[cut :: len(cuts)] if kind == "p"),
                consumers=tuple(i for kind, i in members[cut :: len(cuts)] if kind == "c"),
                rejecters=tuple(i for kind, i in members[cut :: len(cuts)] if kind == "r"),
            )
            for cut in cuts
        ]

    def checked(self) -> LoadPlan:
        """Return the plan with computed defaults. Raises PlanError if options contradict."""
        for wrong, text in self._contradictions():
            if wrong:
                raise PlanError(text)
        ends = self.messages or self.duration or self.mode in (Mode.DRAIN, Mode.FILL)
        # One window of acks may never be more than the broker hands out before the first.
        ack_every = min(self.ack_every, self.prefetch or self.ack_every)
        duration = self.duration if ends else DURATION_S
        return replace(self, ack_every=ack_every, duration=duration)

    def _contradictions(self) -> list[tuple[bool, str]]:
        return [
            (self.publishers > PUBLISHERS_MAX, f"at most {PUBLISHERS_MAX} publishers"),
            (self.numbers > KEYS_MAX, f"at most {KEYS_MAX} different keys"),
            (not 1 <= self.channels <= CHANNELS_MAX, f"1 to {CHANNELS_MAX} channels a connection"),
            (self.queues < 1, "at least one queue"),
            (bool(self.rejecters and not self.dead_letters), "--rejecters needs --dead-letters"),
            (
                any("=" not in pair for pair in self.queue_argument or ()),
                "--queue-argument needs KEY=VALUE",
            ),
            (
                any("=" not in pair for pair in self.consumer_argument or ()),
                "--consumer-argument needs KEY=VALUE",
            ),
            (bool(self.fanout and self.exchange_type), "--fanout brings its own exchange type"),
            (bool(self.bindings and not self.exchange_type), "--bindings needs --exchange-type"),
            (
                bool(self.exchange_type) and self.routing_key.count("{}") > 1,
                "one {} in --routing-key at most",
            ),
            (self.verify and not self.stamped, f"--verify needs --size {STAMP_BYTES} or more"),
            (self.verify and self.mode is not Mode.FLOW, "--verify needs --mode flow"),
            (
                self.verify and self.publishers * self.numbers * self.copies > VERIFIED_STREAMS_MAX,
                "too many publishers times keys to verify",
            ),
            (
                self.mode is Mode.FILL and not self.messages and not self.duration,
                "--mode fill needs --messages or --duration",
            ),
            (
                self.publisher_count + self.consumer_count == 0 and self.mode is not Mode.IDLE,
                "neither publishers nor consumers",
            ),
        ]


@dataclass(frozen=True)
class Share:
    """Share of one process in a plan: the indices of its members."""

    plan: LoadPlan
    publishers: tuple[int, ...]
    consumers: tuple[int, ...]
    rejecters: tuple[int, ...]


def _table(pairs: list[str] | None) -> dict[str, object]:
    """Return arguments that were typed as KEY=VALUE."""
    return {key: _value(text) for key, _, text in (pair.partition("=") for pair in pairs or ())}


def _value(text: str) -> object:
    """Return an argument's value: JSON (numbers, booleans) if it parses, else text."""
    try:
        value: object = json.loads(text)
    except ValueError:
        return text
    return value
