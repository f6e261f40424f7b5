"""Limits of virtual hosts, users and the node, the checks that enforce them, sizes of arguments.

An absent or negative limit means none; 0 admits nothing. Checked when a connection or a channel
opens and when a queue, an exchange or a consumer is created, never per message.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from leveret.core.erlang_terms import binary, json_term
from leveret.core.names import resource
from leveret.errors import ChannelError, LeveretError
from leveret.ports.fields import INT64_MAX

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from leveret.ports.definitions import (
        Arguments,
        Json,
        Limits,
        VhostDefinition,
    )

__all__ = [
    "NO_LIMIT",
    "USER_LIMITS",
    "VHOST_LIMITS",
    "InvalidLimitError",
    "LargeArguments",
    "NodeLimits",
    "Quota",
    "checked_limits",
    "measure",
]

LARGE_BYTES: Final = 1024  # more than arguments written by people
VALUE_BYTES: Final = (
    9  # a number with its type letter; strings and containers have their length in it
)
NO_LIMIT: Final = -1
RATE_LIMITS: Final = ("publish-rate", "publish-burst", "consume-rate", "consume-burst")
VHOST_LIMITS: Final = ("max-connections", "max-queues", *RATE_LIMITS)
USER_LIMITS: Final = ("max-connections", "max-channels", *RATE_LIMITS)


class InvalidLimitError(LeveretError):
    """Raised for an invalid limit, with the text that RabbitMQ's tools show."""


@dataclass(frozen=True, slots=True)
class NodeLimits:
    """Limits of the whole node."""

    connections_max: int = NO_LIMIT
    channels_max: int = NO_LIMIT
    queues_max: int = NO_LIMIT
    exchanges_max: int = NO_LIMIT
    consumers_per_channel_max: int = NO_LIMIT
    arguments_bytes_max: int = NO_LIMIT  # of one definition, or one consumer
    arguments_values_max: int = NO_LIMIT
    large_arguments_bytes_max: int = NO_LIMIT  # of all large arguments of a virtual host together


def checked_limits(limits: Mapping[str, Json], known: Collection[str], name: str) -> Limits:
    """Return validated limits. Raises InvalidLimitError."""
    unknown = [key for key in limits if key not in known]
    if unknown:
        terms = ",".join(f"{{{binary(key)},{json_term(limits[key])}}}" for key in unknown)
        raise InvalidLimitError(f"Unrecognised terms [{terms}] in {name}")
    for key, value in limits.items():
        if not isinstance(value, int) or isinstance(value, bool):
            raise InvalidLimitError(f"{key} should be a number, actually was {json_term(value)}")
        if value > INT64_MAX:
            raise InvalidLimitError(f"{key} should be at most {INT64_MAX}")
    return dict(limits)


def reached(limits: Mapping[str, int], name: str, count: int) -> bool:
    """Whether a limit forbids one more beside the existing `count`."""
    limit = limits.get(name, NO_LIMIT)
    return 0 <= limit <= count


class Quota:
    """Limits on queues, exchanges and arguments of all virtual hosts, which update the counts."""

    def __init__(self, limits: NodeLimits | None = None) -> None:
        self._limits = limits or NodeLimits()
        self.queue_count = 0
        self.exchange_count = 0

    def check_queue(self, vhost: VhostDefinition, name: str, count: int) -> None:
        """Raise ChannelError 406 if a virtual host with `count` queues may have no more."""
        if reached(vhost.limits, "max-queues", count):
            limit = f"vhost '{vhost.name}' ({vhost.limits['max-queues']})"
        elif 0 <= self._limits.queues_max <= self.queue_count:
            limit = f"cluster ({self._limits.queues_max})"
        else:
            return
        raise ChannelError(406, f"cannot declare queue '{name}': queue limit in {limit} is reached")

    def check_arguments(self, arguments: Arguments, of: str) -> None:
        """Raise ChannelError 406 if a definition or consumer has too many arguments."""
        self._measure(arguments, of)

    def check_more_arguments(self, arguments: Arguments, of: str, large: LargeArguments) -> None:
        """Check the arguments of a new definition, also with the `large` ones that exist.

        Raises ChannelError 406.
        """
        octets = self._measure(arguments, of)
        limit = self._limits.large_arguments_bytes_max
        if octets > LARGE_BYTES and 0 <= limit < large.octets + octets:
            raise ChannelError(
                406,
                f"arguments of {of}: those of its vhost that have more than {LARGE_BYTES} bytes "
                f"would take more than {limit} together",
            )

    def _measure(self, arguments: Arguments, of: str) -> int:
        if not arguments:
            return 0
        octets, values = measure(arguments)
        for name, count, limit in (
            ("bytes", octets, self._limits.arguments_bytes_max),
            ("values", values, self._limits.arguments_values_max),
        ):
            if 0 <= limit < count:
                raise ChannelError(406, f"arguments of {of} have more than {limit} {name}")
        return octets

    def check_exchange(self, vhost: VhostDefinition, name: str) -> None:
        """Raise ChannelError 406 if there may be no more exchanges."""
        limit = self._limits.exchanges_max
        if 0 <= limit <= self.exchange_count:
            raise ChannelError(
                406,
                f"cannot declare {resource('exchange', name, vhost.name)}: "
                f"exchange limit of {limit} is reached",
            )


class Size(NamedTuple):
    """Approximate octets on the wire, and number of values, nested ones included."""

    octets: int
    values: int


class LargeArguments:
    """Total size of the large arguments of a virtual host's definitions."""

    def __init__(self) -> None:
        self.octets = 0
        self._of: dict[object, int] = {}

    def enter(self, holder: object, arguments: Arguments) -> None:
        """Add the arguments of a queue, an exchange or a binding, if they are large."""
        octets = measure(arguments).octets if arguments else 0
        if octets > LARGE_BYTES:
            self._of[holder] = octets
            self.octets += octets

    def leave(self, holder: object) -> None:
        """Subtract the arguments of a deleted holder."""
        self.octets -= self._of.pop(holder, 0)


def measure(table: Arguments) -> Size:
    """Return a table's size; the table itself counts as no value."""
    octets, values = 0, 0
    waiting: list[Any] = [table]
    while waiting:
        container = waiting.pop()
        if isinstance(container, dict):
            octets += sum(1 + len(name.encode(errors="surrogateescape")) for name in container)
            container = container.values()
        for value in container:
            values += 1
            octets += VALUE_BYTES
            if isinstance(value, str):
                octets += len(value.encode(errors="surrogateescape"))
            elif isinstance(value, bytes | bytearray):
                octets += len(value)
            elif isinstance(value, dict | list | tuple):
                waiting.append(value)
    return Size(octets, values)
