"""Exchange type `x-consistent-hash`: distributes messages by weight and by hash.

The binding key is the weight. The hash is of the routing key, or of the header or property that the
exchange's arguments name. Equal values go to one destination as long as the bindings stay; if one
is added or removed, only its own share moves.

It is weighted rendezvous hashing: value and destination together give a number between 0 and 1, and
the value goes to the destination with the highest logarithm of it, divided by its weight. Nothing
is stored, the order of the bindings does not matter, and a restart changes nothing. RabbitMQ hashes
into a list of buckets, as many as the sum of the weights, where removing one moves others' shares.
"""

from __future__ import annotations

import re
from hashlib import blake2b
from math import log
from typing import TYPE_CHECKING

from leveret.core.erlang_terms import field_type, term
from leveret.core.routing.router import KeyRouter
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
WEIGHT_MAX = 1_000_000  # a higher weight is a mistake
WEIGHT_DIGITS_MAX = 20  # longer ones are rejected unread: int() takes quadratic time
DIGEST_BYTES = 8
# Destinations of an exchange: a message is hashed with each of them, in a microsecond each.
SHARES_MAX = 1000


class ConsistentHashRouter(KeyRouter):
    """Router by destination; of several bindings to the same, the first one's weight counts."""

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
        # (hash key, weight, first binding) by destination
        self.weights: dict[tuple[str, str], tuple[bytes, int, Binding]] = {}

    def check(self, binding: Binding) -> None:
        """Raise 406 for a binding key that is no weight, or too many destinations."""
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
        """Add a binding."""
        destination = _destination(binding)
        self.shares.setdefault(destination, {})[binding] = None
        self._weigh(destination)

    def remove(self, binding: Binding) -> None:
        """Remove a binding."""
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
        """Return the binding whose share the message belongs to."""
        if not self.weights:
            return ()
        value = self._value(routing_key, message)
        return (max(self.weights.values(), key=lambda share: _score(value, share[0], share[1]))[2],)

    def _value(self, routing_key: str, message: Message | None) -> bytes:
        """Return the value to be hashed; messages without the header or property are all equal."""
        if message is not None and self.header is not None:
            return term(message.headers.get(self.header)).encode(errors="surrogateescape")
        if message is not None and self.property is not None:
            return term(message.property(self.property)).encode(errors="surrogateescape")
        return routing_key.encode(errors="surrogateescape")


def _score(value: bytes, hash_key: bytes, weight: int) -> float:
    """Return a destination's score for a value; the highest wins."""
    digest = blake2b(value, digest_size=DIGEST_BYTES, key=hash_key).digest()
    return log((int.from_bytes(digest) + 0.5) / (1 << (8 * DIGEST_BYTES))) / weight


def _hash_key(destination: tuple[str, str]) -> bytes:
    return blake2b("\0".join(destination).encode(errors="surrogateescape"), digest_size=16).digest()


def _destination(binding: Binding) -> tuple[str, str]:
    """Return a destination's key.

    A queue's is its name at declaration, so that renaming moves none.
    """
    end = binding.destination.definition
    topic = end.topic if isinstance(end, QueueDefinition) else end.name
    return binding.definition.destination_type, topic


def _name(arguments: Arguments, key: str) -> str | None:
    name = arguments.get(key)
    if key in arguments and not isinstance(name, str):
        raise ChannelError(406, f"invalid type '{field_type(name)}' for arg '{key}'")
    return name
