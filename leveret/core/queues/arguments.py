"""What may stand in the arguments of a queue: one table, a line for each argument.

A wrong value is refused when the queue is declared, also where it would only matter later.
Arguments that no queue type knows are ignored, as clients expect; one that only another type knows
is refused.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any, TypeAlias

from leveret.core.erlang_terms import field_type, term
from leveret.core.filtering.arguments import FILTER_CHECKS
from leveret.core.names import resource
from leveret.core.queues.stream_offsets import STREAM_OFFSET, interval_ms, parse_start
from leveret.errors import ChannelError
from leveret.features import retry
from leveret.features.dedup import is_window
from leveret.features.leases import TERM_MS_MAX
from leveret.features.rates import RATE_MAX
from leveret.ports.definitions import Arguments, QueueDefinition
from leveret.ports.fields import INT64_MAX

ALTERNATE_EXCHANGE = "alternate-exchange"
DEAD_LETTER_EXCHANGE = "x-dead-letter-exchange"
DEDUP_WINDOW = "x-dedup-window"
QUEUE_TYPE = "x-queue-type"
VISIBILITY_TIMEOUT = "x-visibility-timeout"
GROUP_ORDERING = "x-group-ordering"
CONSUMER_GROUP = "x-consumer-group"

# Ten years: a timer further out is a mistake in the unit.
EXPIRY_MS_MAX = 315_360_000_000
PRIORITY_MAX = 255

# Says what is wrong with a value, given all arguments, in the text's own notation; None: nothing.
Check: TypeAlias = Callable[[Any, Arguments], str | None]


def integer(value: Any, _arguments: Arguments) -> str | None:
    """Check for a whole number."""
    if isinstance(value, int) and not isinstance(value, bool):
        return None
    return f'"expected integer, got {field_type(value)}"'


def not_negative(value: Any, arguments: Arguments) -> str | None:
    """Check for zero or more, of 64 bits: HTTP could bring others."""
    problem = integer(value, arguments)
    if problem is None and value < 0:
        return f"{{value_negative,{value}}}"
    if problem is None and value > INT64_MAX:
        return f"{{value_too_large,{value}}}"
    return problem


def positive(value: Any, arguments: Arguments) -> str | None:
    """Check for one or more."""
    problem = not_negative(value, arguments)
    return "{value_zero,0}" if problem is None and value == 0 else problem


def time_to_live(value: Any, arguments: Arguments) -> str | None:
    """Check for milliseconds, zero allowed."""
    problem = not_negative(value, arguments)
    if problem is None and value > EXPIRY_MS_MAX:
        return f"{{value_too_large,{value}}}"
    return problem


def expiry(value: Any, arguments: Arguments) -> str | None:
    """Check for milliseconds, at least one."""
    return time_to_live(value, arguments) or positive(value, arguments)


def lease_term(value: Any, arguments: Arguments) -> str | None:
    """Check for milliseconds for which somebody may have a message to himself."""
    problem = positive(value, arguments)
    if problem is None and value > TERM_MS_MAX:
        return f"{{value_too_large,{value}}}"
    return problem


def rate(value: Any, arguments: Arguments) -> str | None:
    """Check for messages, a second or at once."""
    problem = positive(value, arguments)
    if problem is None and value > RATE_MAX:
        return f"{{value_too_large,{value}}}"
    return problem


def priority(value: Any, arguments: Arguments) -> str | None:
    """Check the number of priority levels above zero."""
    problem = not_negative(value, arguments)
    if problem is None and value > PRIORITY_MAX:
        return f"{{max_value_exceeded,{value}}}"
    return problem


def boolean(value: Any, _arguments: Arguments) -> str | None:
    """Check for true or false."""
    return None if isinstance(value, bool) else unacceptable(value)


def group_ordering(value: Any, arguments: Arguments) -> str | None:
    """Check for true or false; groups are served in turn, which leaves priorities no say."""
    problem = boolean(value, arguments)
    if problem is None and value and "x-max-priority" in arguments:
        return '"not together with x-max-priority"'
    return problem


def text(value: Any, _arguments: Arguments) -> str | None:
    """Check for a string."""
    return None if isinstance(value, str) else unacceptable(value)


def one_of(allowed: tuple[str, ...], problem: str) -> Check:
    """Make the check of a string that must be one of a few; `problem` may quote it as `{}`."""

    def check(value: Any, _arguments: Arguments) -> str | None:
        if not isinstance(value, str):
            return unacceptable(value)
        return None if value in allowed else problem.format(value)

    return check


def dead_letter_routing_key(value: Any, arguments: Arguments) -> str | None:
    """Check for a string; pointless without an exchange."""
    if not isinstance(value, str):
        return unacceptable(value)
    return None if DEAD_LETTER_EXCHANGE in arguments else "routing_key_but_no_dlx_defined"


def queue_version(value: Any, arguments: Arguments) -> str | None:
    """Check for a storage version of the past; both mean the one there is."""
    problem = not_negative(value, arguments)
    if problem is None and value not in (1, 2):
        return f"\"unsupported queue version '{value}'\""
    return problem


def unacceptable(value: Any) -> str:
    """Name the wire type that cannot be."""
    return f"{{unacceptable_type,{field_type(value)}}}"


def max_age(value: Any, _arguments: Arguments) -> str | None:
    """Check for an interval such as `7D`."""
    if not isinstance(value, str):
        return unacceptable(value)
    return "invalid_max_age" if interval_ms(value) is None else None


def dedup_window(value: Any, _arguments: Arguments) -> str | None:
    """Check for a time within which messages are not stored twice: true, or milliseconds."""
    if is_window(value):
        return None
    if isinstance(value, int):
        return f"{{invalid_dedup_window,{term(value)}}}"
    return unacceptable(value)


def stream_offset(value: Any, _arguments: Arguments) -> str | None:
    """Check for a place in a stream."""
    if parse_start(value) is not None:
        return None
    return f"{{invalid_stream_offset_arg,{{{field_type(value)},{term(value)}}}}}"


def anything(_value: Any, _arguments: Arguments) -> str | None:
    """Let pass what counts for nothing where it makes no sense, as in RabbitMQ."""
    return None


def not_yet(_value: Any, _arguments: Arguments) -> str | None:
    """Refuse what is promised: a queue without it would look as if it had it."""
    return '"it is not supported by this release"'


queue_type = one_of(("classic", "quorum", "stream"), "\"unsupported queue type '{}'\"")
queue_mode = one_of(("default", "lazy"), "\"unsupported queue mode '{}'\"")
leader_locator = one_of(("client-local", "balanced"), "invalid_queue_locator_arg")
master_locator = one_of(
    ("client-local", "balanced", "min-masters", "random"), "invalid_queue_locator_arg"
)
classic_overflow = one_of(("drop-head", "reject-publish", "reject-publish-dlx"), "invalid_overflow")
quorum_overflow = one_of(("drop-head", "reject-publish"), "invalid_overflow")
dead_letter_strategy = one_of(("at-most-once", "at-least-once"), "invalid_dlx_strategy")
delayed_retry_type = one_of(("disabled", "all", "failed", "returned"), "invalid_delayed_retry_type")

# In the order in which they are checked, and compared when a queue is declared again.
CLASSIC: dict[str, Check] = {
    "x-expires": expiry,
    "x-message-ttl": time_to_live,
    DEAD_LETTER_EXCHANGE: text,
    "x-dead-letter-routing-key": dead_letter_routing_key,
    "x-dead-letter-topic": boolean,
    "x-max-length": not_negative,
    "x-max-length-bytes": not_negative,
    "x-max-priority": priority,
    "x-overflow": classic_overflow,
    "x-delivery-limit": integer,
    "x-queue-mode": queue_mode,
    "x-queue-version": queue_version,
    "x-single-active-consumer": boolean,
    QUEUE_TYPE: queue_type,
    "x-queue-master-locator": master_locator,
    "x-queue-leader-locator": leader_locator,
    VISIBILITY_TIMEOUT: lease_term,
    GROUP_ORDERING: group_ordering,
}
QUORUM: dict[str, Check] = {
    "x-expires": expiry,
    "x-message-ttl": time_to_live,
    DEAD_LETTER_EXCHANGE: text,
    "x-dead-letter-routing-key": dead_letter_routing_key,
    "x-dead-letter-topic": boolean,
    "x-dead-letter-strategy": dead_letter_strategy,
    "x-max-length": not_negative,
    "x-max-length-bytes": not_negative,
    "x-max-in-memory-length": not_negative,
    "x-max-in-memory-bytes": not_negative,
    "x-overflow": quorum_overflow,
    "x-delivery-limit": integer,
    "x-single-active-consumer": boolean,
    QUEUE_TYPE: queue_type,
    "x-quorum-initial-group-size": positive,
    "x-queue-leader-locator": leader_locator,
    "x-member-placement-tag": text,
    "x-consumer-disconnected-timeout": time_to_live,
    "x-consumer-timeout": time_to_live,
    "x-delayed-retry-type": delayed_retry_type,
    "x-delayed-retry-min": time_to_live,
    "x-delayed-retry-max": time_to_live,
    VISIBILITY_TIMEOUT: lease_term,
    GROUP_ORDERING: group_ordering,
}
STREAM: dict[str, Check] = {
    "x-max-length-bytes": not_negative,
    QUEUE_TYPE: queue_type,
    "x-max-age": max_age,
    "x-stream-max-segment-size-bytes": not_negative,
    "x-stream-filter-size-bytes": anything,  # see check_stream_sizes
    "x-initial-cluster-size": positive,
    "x-queue-leader-locator": leader_locator,
}


def _check_of(problem_of: Callable[[Any], str | None]) -> Check:
    return lambda value, _arguments: problem_of(value)


def retry_keep_order(value: Any, arguments: Arguments) -> str | None:
    """Check for the order that there is; groups have an order of their own, which blocks."""
    problem = retry.ARGUMENTS["retry-keep-order"](value)
    if problem is None and arguments.get("x-group-ordering") is True:
        return '"not together with x-group-ordering"'
    return problem


# What every queue takes that hands each message out once.
RETRY: dict[str, Check] = {
    **{f"x-{key}": _check_of(problem_of) for key, problem_of in retry.ARGUMENTS.items()},
    "x-retry-keep-order": retry_keep_order,
}
# What queues take whose messages are handed out once.
HOLDING: dict[str, Check] = {"x-celery-eta": boolean}
# What queues of every type take beyond RabbitMQ's arguments.
FEATURES: dict[str, Check] = {
    DEDUP_WINDOW: dedup_window,
    "x-publish-rate": rate,
    "x-publish-burst": rate,
    "x-consume-rate": rate,
    "x-consume-burst": rate,
    "x-retention": not_yet,
    "x-partitions": not_yet,
}
TYPES = {
    "classic": {**CLASSIC, **RETRY, **HOLDING, **FEATURES},
    "quorum": {**QUORUM, **RETRY, **HOLDING, **FEATURES},
    "stream": {**STREAM, **FEATURES},
}
# The names of types in reply texts are the module names of the broker that clients know.
MODULES = {
    "classic": "rabbit_classic_queue",
    "quorum": "rabbit_quorum_queue",
    "stream": "rabbit_stream_queue",
}
EVERY_ARGUMENT = {key for known in TYPES.values() for key in known}
# What a consumer may ask of a queue.
CONSUMER_TYPES: dict[str, dict[str, Check]] = {
    "classic": {
        "x-priority": integer,
        VISIBILITY_TIMEOUT: lease_term,
        CONSUMER_GROUP: not_yet,
        **FILTER_CHECKS,
    },
    "quorum": {
        CONSUMER_GROUP: not_yet,
        "x-priority": integer,
        "x-consumer-timeout": time_to_live,
        VISIBILITY_TIMEOUT: lease_term,
        **FILTER_CHECKS,
    },
    "stream": {
        CONSUMER_GROUP: not_yet,
        **FILTER_CHECKS,
        STREAM_OFFSET: stream_offset,
        "x-stream-filter": anything,
        "x-stream-match-unfiltered": anything,
    },
}
EVERY_CONSUMER_ARGUMENT = {key for known in CONSUMER_TYPES.values() for key in known}

STREAM_SEGMENT_BYTES_MAX = 3_000_000_000
# RabbitMQ's Bloom filter for each block of messages; ours is exact, and needs no size.
STREAM_FILTER_BYTES_MIN, STREAM_FILTER_BYTES_MAX = 16, 255


def type_of(arguments: Arguments) -> str:
    """Read the queue type; absent means classic, and so does one that will be refused."""
    kind = arguments.get(QUEUE_TYPE)
    return kind if isinstance(kind, str) and kind in TYPES else "classic"


def known_arguments(arguments: Arguments) -> tuple[str, ...]:
    """List the arguments that mean something to the queue's type."""
    return tuple(TYPES[type_of(arguments)])


def check_queue_arguments(definition: QueueDefinition) -> None:
    """Raise 406 unless every argument suits the queue's type, and the queue its type."""
    name, arguments = resource("queue", definition.name, definition.vhost), definition.arguments
    check_value(QUEUE_TYPE, queue_type, name, arguments)
    kind = type_of(arguments)
    for key, check in TYPES[kind].items():
        check_value(key, check, name, arguments)
    _check_known(name, kind, arguments, EVERY_ARGUMENT, TYPES)
    if kind != "classic":
        check_replicated_properties(definition, name)
    if kind == "stream":
        check_stream_sizes(arguments)


def check_consumer_arguments(definition: QueueDefinition, arguments: Arguments) -> None:
    """Raise 406 unless every argument of a consumer suits the type of its queue."""
    name, kind = resource("queue", definition.name, definition.vhost), type_of(definition.arguments)
    _check_known(name, kind, arguments, EVERY_CONSUMER_ARGUMENT, CONSUMER_TYPES)
    for key, check in CONSUMER_TYPES[kind].items():
        check_value(key, check, name, arguments)


def _check_known(
    name: str,
    kind: str,
    arguments: Arguments,
    every: Collection[str],
    types: Mapping[str, Collection[str]],
) -> None:
    """Raise 406 for an argument that other types of queues know, but not this one."""
    for key in arguments:
        if key in every and key not in types[kind]:
            raise ChannelError(406, f"invalid arg '{key}' for {name} of queue type {MODULES[kind]}")


def check_value(key: str, check: Check, name: str, arguments: Arguments) -> None:
    """Check one argument, if it is there."""
    if key in arguments:
        problem = check(arguments[key], arguments)
        if problem is not None:
            raise ChannelError(406, f"invalid arg '{key}' for {name}: {problem}")


def check_replicated_properties(definition: QueueDefinition, name: str) -> None:
    """Raise 406 unless the queue outlives connections, consumers and restarts."""
    properties = {
        "auto-delete": definition.auto_delete,
        "exclusive-owner": definition.exclusive,
        "non-durable": not definition.durable,
    }
    for key, wrong in properties.items():
        if wrong:
            raise ChannelError(406, f"invalid property '{key}' for {name}")


def check_stream_sizes(arguments: Arguments) -> None:
    """Raise 406 for sizes beyond what a stream may have, in texts that name no queue."""
    segment = arguments.get("x-stream-max-segment-size-bytes", 0)
    if segment > STREAM_SEGMENT_BYTES_MAX:
        raise ChannelError(406, "Exceeded max value for x-stream-max-segment-size-bytes")
    size = arguments.get("x-stream-filter-size-bytes", STREAM_FILTER_BYTES_MIN)
    if integer(size, arguments) is not None:
        raise ChannelError(406, "Invalid type for x-stream-filter-size-bytes")
    if not STREAM_FILTER_BYTES_MIN <= size <= STREAM_FILTER_BYTES_MAX:
        raise ChannelError(406, "Invalid value for x-stream-filter-size-bytes")


def check_server_named(arguments: Arguments) -> None:
    """Raise 406 for a type whose queues must be named by the client."""
    kind = type_of(arguments)
    if kind != "classic":
        raise ChannelError(406, f"Cannot declare a server-named queue for type {MODULES[kind]}")


def check_exchange_name(key: str, name: str, arguments: Arguments) -> None:
    """Raise 406 unless the argument, if it is there, can name an exchange."""
    if key in arguments and not isinstance(arguments[key], str):
        kind = field_type(arguments[key])
        raise ChannelError(406, f"invalid type '{kind}' for arg '{key}' in {name}")


def with_default_type(arguments: Arguments, default: str, *, replicable: bool) -> Arguments:
    """Fill in a virtual host's default queue type where none was asked for.

    `replicable`: the queue is durable, neither exclusive nor auto-delete; others stay classic,
    since the default must not make a valid declaration fail.
    """
    if QUEUE_TYPE in arguments or default == "classic" or not replicable:
        return arguments
    return {**arguments, QUEUE_TYPE: default}
