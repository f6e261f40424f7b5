"""Exchange type `x-consistent-hash`: shares of the messages by weight, each kept by its queue.

The binding key is the weight. What is hashed is the routing key, or the header or property that the
exchange's arguments name. Equal values go to one destination for as long as the bindings stay; when
one comes or goes, only its own share moves.

That is weighted rendezvous hashing: value and destination together give a number between 0 and 1,
and the destination with the highest logarithm of it, divided by its weight, has the value. Nothing
is stored, the order of the bindings does not matter, and a restart changes nothing. RabbitMQ hashes
into a list of buckets, as many as the weights add up to, where removing one moves others' shares.
"""

from __future__ import annotations

import re
from hashlib import blake2b
from math import log
from typing import TYPE_CHECKING

from leveret.core.erlang_terms import field_type, term
from leveret.core.exchanges.router import KeyRouter
from leveret.errors import ChannelError
from leveret.ports.definitions import QueueDefinition

if TYPE_CHECKING:
    from collections.abc import Iterable

    from leveret.core.routing.bindings import Binding
    from leveret.core.routing.message import Message
    from leveret.ports.definitions import Arguments

HASH_HEADER, HASH_PROPERTY = "hash-header", "hash-property"
PROPERTIES = ("correlation_id", "message_id", "timestamp")
WHOLE_NUMBER = re.compile(r"[+-]?[0-9]+\Z")
WEIGHT_MAX = 1_000_000  # a share finer than that is a mistake for something else
WEIGHT_DIGITS_MAX = 20  # longer ones are not read: int() takes quadratic time
DIGEST_BYTES = 8
# Destinations of an exchange: a message is hashed with each of them, in a microsecond.
SHARES_MAX = 1000


class ConsistentHashRouter(KeyRouter):
    """Bindings by their destinations; of several to the same, the first one's weight counts."""

    chooses = True

    def __init__(self, arguments: Arguments) -> None:
        super().__init__(arguments)
        self.header = _name(arguments, HASH_HEADER)
        self.property = _name(arguments, HASH_PROPERTY)
        if self.header is not None and self.property is not None:
            raise ChannelError(406, "hash-header and hash-property are mutually exclusive")
        if self.property is not None and self.property not in PROPERTIES:
            raise ChannelError(406, f"Unsupported property: {self.property}")
        self.key_decides = self.header is None and self.property is None
        self.shares: dict[tuple[str, str], dict[Binding, None]] = {}
        # (hash key, weight, its binding) of each destination
        self.weights: dict[tuple[str, str], tuple[bytes, int, Binding]] = {}

    def check(self, binding: Binding) -> None:
        """Refuse (406) a key that is no weight."""
        key = binding.definition.routing_key
        if not WHOLE_NUMBER.match(key):
            raise ChannelError(406, f"The binding key must be an integer: {term(key)}")
        if key.startswith("-") or not key.strip("+0"):
            raise ChannelError(406, "The binding key must be greater than 0")
        if len(key) > WEIGHT_DIGITS_MAX or int(key) > WEIGHT_MAX:
            raise ChannelError(406, f"The binding key must not exceed {WEIGHT_MAX}")
        if len(self.shares) >= SHARES_MAX and _destination(binding) not in self.shares:
            raise ChannelError(406, f"The exchange leads to {SHARES_MAX} destinations already")

    def add(self, binding: Binding) -> None:
        """Take a binding in."""
        destination = _destination(binding)
        self.shares.setdefault(destination, {})[binding] = None
        self._weigh(destination)

    def remove(self, binding: Binding) -> None:
        """Let a binding go."""
        destination = _destination(binding)
        del self.shares[destination][binding]
        if self.shares[destination]:
            self._weigh(destination)
        else:
            del self.shares[destination], self.weights[destination]

    def _weigh(self, destination: tuple[str, str]) -> None:
        first = next(iter(self.shares[destination]))
        weight = int(first.definition.routing_key)
        self.weights[destination] = (_hash_key(destination), weight, first)

    def match(self, routing_key: str, message: Message | None) -> Iterable[Binding]:
        """Choose the one destination whose share the message belongs to."""
        if not self.weights:
            return ()
        value = self._value(routing_key, message)
        return (max(self.weights.values(), key=lambda share: _score(value, share[0], share[1]))[2],)

    def _value(self, routing_key: str, message: Message | None) -> bytes:
        """What is hashed; messages without the header or property are all alike."""
        if message is not None and self.header is not None:
            return term(message.headers.get(self.header)).encode(errors="surrogateescape")
        if message is not None and self.property is not None:
            return term(message.property(self.property)).encode(errors="surrogateescape")
        return routing_key.encode(errors="surrogateescape")


def _score(value: bytes, hash_key: bytes, weight: int) -> float:
    """How strongly a destination claims a value; the highest has it."""
    digest = blake2b(value, digest_size=DIGEST_BYTES, key=hash_key).digest()
    return log((int.from_bytes(digest) + 0.5) / (1 << (8 * DIGEST_BYTES))) / weight


def _hash_key(destination: tuple[str, str]) -> bytes:
    return blake2b("\0".join(destination).encode(errors="surrogateescape"), digest_size=16).digest()


def _destination(binding: Binding) -> tuple[str, str]:
    """A queue counts by the name that it was declared with: renaming it moves no keys."""
    end = binding.destination.definition
    topic = end.topic if isinstance(end, QueueDefinition) else end.name
    return binding.definition.destination_type, topic


def _name(arguments: Arguments, key: str) -> str | None:
    name = arguments.get(key)
    if key in arguments and not isinstance(name, str):
        raise ChannelError(406, f"invalid type '{field_type(name)}' for arg '{key}'")
    return name
