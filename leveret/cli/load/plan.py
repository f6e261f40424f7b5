"""What a run is asked to do, and what follows from it: names, keys, who does which part."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from enum import StrEnum
from urllib.parse import unquote, urlsplit

from leveret.errors import LeveretError

__all__ = [
    "UNLIMITED",
    "AckFrames",
    "Address",
    "Binding",
    "Mode",
    "Plan",
    "PlanError",
    "PublisherPart",
    "Share",
]

NUMBER_FORMAT = "{:08d}"  # eight digits, so that a burst's keys are all of one length
STAMP_BYTES = 16
PUBLISHERS_MAX = 4096  # twelve bits of a message's identity
KEYS_MAX = 1 << 20  # twenty bits of it
CHANNELS_MAX = 2047
VERIFIED_STREAMS_MAX = 1 << 24  # sixteen bytes each: 256 MB
UNLIMITED = 1 << 62  # messages; no run lives to see it
FRAME_BYTES_MAX = 131072  # asked for in tune-ok; what RabbitMQ and Leveret offer


class PlanError(LeveretError):
    """The options contradict one another; the text says which."""


class Mode(StrEnum):
    """What the run does with messages."""

    FLOW = "flow"  # publish and consume at once
    FILL = "fill"  # publish only and leave the queues as they are
    DRAIN = "drain"  # consume what the queues hold
    IDLE = "idle"  # hold connections that do nothing


class AckFrames(StrEnum):
    """How acknowledgements are framed."""

    EACH = "each"  # a frame for every message
    EVERY = "every"  # one `multiple` frame for every n messages
    READ = "read"  # one `multiple` frame for what one read of the socket brought


@dataclass(frozen=True)
class Address:
    """Where the broker listens and who asks."""

    host: str
    port: int
    user: str
    password: str
    vhost: str

    @classmethod
    def parse(cls, uri: str) -> Address:
        """The address in `amqp://user:password@host:port/vhost`; what is left out has defaults."""
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
class Binding:
    """One binding of a queue to the plan's exchange."""

    queue: str
    key: str


@dataclass(frozen=True)
class PublisherPart:
    """One publisher: who it is, which numbers its keys carry, how much it sends."""

    identity: int
    first: int
    step: int
    seed: int | None
    quota: int


@dataclass(frozen=True)
class Plan:
    """All options of one run. Times in seconds, sizes in bytes, rate in messages a second."""

    uri: str = "amqp://guest:guest@127.0.0.1:5672/"
    mode: Mode = Mode.FLOW
    name: str = "leveret-perf"
    publishers: int = 1
    consumers: int = 1
    queues: int = 1
    channels: int = 1
    size: int = 16
    rate: float = 0
    messages: int = 0
    duration: float = 0
    warm_up: float = 0
    drain_timeout: float = 10
    confirms: int = 0
    ack_every: int = 0
    ack_frames: AckFrames = AckFrames.EVERY
    prefetch: int = 0
    persistent: bool = False
    durable: bool | None = None
    queue_type: str = "classic"
    queue_arguments: dict[str, object] = field(default_factory=dict)
    exchange_type: str = ""
    bindings: int = 0
    binding_key: str = "perf.{}"
    routing_key: str = "perf.{}"
    random_keys: bool = False
    fanout: int = 0
    get: bool = False
    verify: bool = False
    keep: bool = False
    connections: int = 100
    processes: int = 1
    spin: bool = False

    @property
    def address(self) -> Address:
        """Where to connect."""
        return Address.parse(self.uri)

    @property
    def queue_count(self) -> int:
        """How many queues there are: a fanout has one for each copy."""
        return self.fanout or self.queues

    @property
    def queue_names(self) -> list[str]:
        """The queues' names."""
        return [self.queue_name(number) for number in range(self.queue_count)]

    @property
    def exchange(self) -> str:
        """The exchange published to; empty for the default exchange."""
        return self.name if self.fanout or self.exchange_type else ""

    @property
    def declared_exchange_type(self) -> str:
        """The type of `exchange`."""
        return "fanout" if self.fanout else self.exchange_type

    @property
    def queues_durable(self) -> bool:
        """Durable as asked for, else where messages are persistent or the type demands it."""
        if self.durable is not None:
            return self.durable
        return self.persistent or self.queue_type != "classic"

    @property
    def numbers(self) -> int:
        """How many different numbers stand in routing keys."""
        if self.fanout:
            return 1
        return (self.bindings or self.queues) if self.exchange_type else self.queues

    @property
    def copies(self) -> int:
        """How many queues each message reaches."""
        return self.fanout or 1

    @property
    def stamped(self) -> bool:
        """Whether bodies have room for time and identity."""
        return self.size >= STAMP_BYTES

    @property
    def publisher_count(self) -> int:
        """How many publishers the mode has."""
        return self.publishers if self.mode in (Mode.FLOW, Mode.FILL) else 0

    @property
    def consumer_count(self) -> int:
        """How many consumers the mode has."""
        return self.consumers if self.mode in (Mode.FLOW, Mode.DRAIN) else 0

    @property
    def key_template(self) -> str:
        """The routing key, with `{}` where a message's number goes."""
        return self.routing_key if self.exchange else f"{self.name}.{{}}"

    def queue_name(self, number: int) -> str:
        """The name of one queue, which is also its key at the default exchange."""
        return f"{self.name}." + NUMBER_FORMAT.format(number)

    def binding_list(self) -> list[Binding]:
        """What binds the queues to the exchange; the default exchange needs nothing."""
        if not self.exchange:
            return []
        if self.fanout:
            return [Binding(queue, "") for queue in self.queue_names]
        return [
            Binding(
                self.queue_name(number % self.queues),
                self.binding_key.replace("{}", NUMBER_FORMAT.format(number)),
            )
            for number in range(self.numbers)
        ]

    def publisher_part(self, index: int) -> PublisherPart:
        """What publisher `index` does; together they send `messages`, to every number."""
        count = self.publisher_count
        quota = self.messages // count + (index < self.messages % count)
        first, step = index % self.numbers, count if count < self.numbers else self.numbers
        seed = index if self.random_keys else None
        return PublisherPart(index, first, step, seed, quota if self.messages else UNLIMITED)

    def get_quota(self, index: int) -> int:
        """How many messages consumer `index` asks for with basic.get."""
        if not (self.messages and self.mode is Mode.DRAIN):
            return UNLIMITED
        return self.messages // self.consumers + (index < self.messages % self.consumers)

    def consumer_queues(self, index: int) -> list[int]:
        """The numbers of the queues that consumer `index` consumes from."""
        if self.consumers >= self.queue_count:
            return [index % self.queue_count]
        return list(range(index, self.queue_count, self.consumers))

    def shares(self) -> list[Share]:
        """The plan cut into parts, one for each process that has something to do."""
        cuts = range(max(1, min(self.processes, self.publisher_count + self.consumer_count)))
        members = [("p", index) for index in range(self.publisher_count)]
        members += [("c", index) for index in range(self.consumer_count)]
        return [
            Share(
                plan=self,
                publishers=tuple(i for kind, i in members[cut :: len(cuts)] if kind == "p"),
                consumers=tuple(i for kind, i in members[cut :: len(cuts)] if kind == "c"),
            )
            for cut in cuts
        ]

    def checked(self) -> Plan:
        """The plan itself, or a PlanError that says which options contradict one another."""
        for wrong, text in self._contradictions():
            if wrong:
                raise PlanError(text)
        # One window of acks may never be more than the broker hands out before the first.
        if self.prefetch and self.ack_every > self.prefetch:
            return replace(self, ack_every=self.prefetch)
        return self

    def _contradictions(self) -> list[tuple[bool, str]]:
        return [
            (self.publishers > PUBLISHERS_MAX, f"at most {PUBLISHERS_MAX} publishers"),
            (self.numbers > KEYS_MAX, f"at most {KEYS_MAX} different keys"),
            (not 1 <= self.channels <= CHANNELS_MAX, f"1 to {CHANNELS_MAX} channels a connection"),
            (self.queues < 1, "at least one queue"),
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
    """What one process does of a plan: the indices of its publishers and consumers."""

    plan: Plan
    publishers: tuple[int, ...]
    consumers: tuple[int, ...]
