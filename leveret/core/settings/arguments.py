"""Valid arguments of queues and consumers: a table per queue type, one check per argument.

A wrong value is refused at declaration, even where it would only matter later. Arguments that no
queue type knows are ignored, as clients expect; one that only another type knows is refused. The
reasons are RabbitMQ's where it has the argument; for others they say what is allowed.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any, TypeAlias

from leveret.core.erlang_terms import field_type, term
from leveret.core.names import NAME_BYTES_MAX, resource
from leveret.core.settings.partitioning import (
    BY_KEY,
    MESSAGE_GROUP,
    NOT_BY_KEY,
    PARTITION_BY,
    PARTITIONS,
    PARTITIONS_MAX,
)
from leveret.core.settings.retry_policy import RETRY_ARGUMENTS, whole
from leveret.core.settings.stream_offsets import (
    STREAM_OFFSET,
    duration_ms,
    interval_ms,
    parse_group_start,
    parse_start,
)
from leveret.errors import ChannelError
from leveret.features.filters.rules import FILTER_CHECKS
from leveret.ports.definitions import Arguments, QueueDefinition
from leveret.ports.fields import INT64_MAX

ALTERNATE_EXCHANGE = "alternate-exchange"
DEAD_LETTER_EXCHANGE = "x-dead-letter-exchange"
DEDUP_WINDOW = "x-dedup-window"
QUEUE_TYPE = "x-queue-type"
VISIBILITY_TIMEOUT = "x-visibility-timeout"
GROUP_ORDERING = "x-group-ordering"
CONSUMER_GROUP = "x-consumer-group"
GROUP_SESSION = "x-group-session"
GROUP_ASSIGN = "x-group-assign"
SESSION_MS = 5 * 60_000  # as in Kafka, where it is the longest time between two polls
RETENTION_LIMITS = (
    "x-retention",
    "x-retention-bytes",
    "x-retention-messages",
)  # of settled messages
RETENTION_WAITS_FOR = "x-retention-waits-for"
RETENTION_SETTLES = "x-retention-settles"
COMPACT = "x-compact"
COMPACT_DELETE_RETENTION = "x-compact-delete-retention"
RETENTION_ARGUMENTS = (
    *RETENTION_LIMITS,
    RETENTION_WAITS_FOR,
    "x-retention-waits-max",
    RETENTION_SETTLES,
)
HEADER_NAME_BYTES_MAX = 128  # as clients are allowed
NAMED_GROUPS_MAX = 16  # groups that retention waits for, or that settle for the queue

# Ten years: a longer time is a mistake in the unit.
EXPIRY_MS_MAX = 315_360_000_000
PRIORITY_MAX = 255
TERM_MS_MAX = 12 * 3_600_000  # as in SQS: consumers that need longer must extend the lease
COPIES_MAX = 9
RATE_MAX = 1_000_000_000  # messages per second: beyond any node's capacity, and safe from overflow
# As in the FIFO queues of a large cloud provider, whose users expect it.
WINDOW_MS = 5 * 60_000
# A day: later repetitions do not come from a program that is waiting for a confirm.
WINDOW_MS_MAX = 24 * 60 * 60_000

# Returns what is wrong with a value, given all arguments, in the notation of reply texts, or None.
Check: TypeAlias = Callable[[Any, Arguments], str | None]


def of_value(problem_of: Callable[[Any], str | None]) -> Check:
    """Return the check of an argument whose validity does not depend on others."""
    return lambda value, _arguments: problem_of(value)


def integer(value: Any, _arguments: Arguments) -> str | None:
    """Check for an integer."""
    if isinstance(value, int) and not isinstance(value, bool):
        return None
    return f'"expected integer, got {field_type(value)}"'


def not_negative(value: Any, arguments: Arguments) -> str | None:
    """Check for an integer of zero or more within 64 bits; the HTTP API could send larger ones."""
    problem = integer(value, arguments)
    if problem is None and value < 0:
        return f"{{value_negative,{value}}}"
    if problem is None and value > INT64_MAX:
        return f"{{value_too_large,{value}}}"
    return problem


def positive(value: Any, arguments: Arguments) -> str | None:
    """Check for an integer of one or more."""
    problem = not_negative(value, arguments)
    return "{value_zero,0}" if problem is None and value == 0 else problem


def time_to_live(value: Any, arguments: Arguments) -> str | None:
    """Check for a time to live in ms, zero allowed."""
    problem = not_negative(value, arguments)
    if problem is None and value > EXPIRY_MS_MAX:
        return f"{{value_too_large,{value}}}"
    return problem


def expiry(value: Any, arguments: Arguments) -> str | None:
    """Check for an expiry time in ms, at least one."""
    return time_to_live(value, arguments) or positive(value, arguments)


# Visibility timeouts; rates in messages per second and bursts in messages; numbers of what is kept.
lease_term = of_value(whole(1, TERM_MS_MAX, "milliseconds"))
rate = of_value(whole(1, RATE_MAX))
kept_count = of_value(whole(1, INT64_MAX))
copies = of_value(whole(1, COPIES_MAX))


def priority(value: Any, arguments: Arguments) -> str | None:
    """Check for the highest priority, 0 to PRIORITY_MAX."""
    problem = not_negative(value, arguments)
    if problem is None and value > PRIORITY_MAX:
        return f"{{max_value_exceeded,{value}}}"
    return problem


def boolean(value: Any, _arguments: Arguments) -> str | None:
    """Check for true or false."""
    return None if isinstance(value, bool) else unacceptable(value)


def switch(value: Any, _arguments: Arguments) -> str | None:
    """Check for true or false."""
    return None if isinstance(value, bool) else '"expected true or false"'


def group_ordering(value: Any, arguments: Arguments) -> str | None:
    """Check for a switch; not with priorities, since groups are served round-robin."""
    problem = switch(value, arguments)
    if problem is None and value and "x-max-priority" in arguments:
        return '"not together with x-max-priority"'
    return problem


def text(value: Any, _arguments: Arguments) -> str | None:
    """Check for a string."""
    return None if isinstance(value, str) else unacceptable(value)


def one_of(allowed: tuple[str, ...], problem: str) -> Check:
    """Return a check for one of several strings; `problem` may quote the value as `{}`."""

    def check(value: Any, _arguments: Arguments) -> str | None:
        if not isinstance(value, str):
            return unacceptable(value)
        return None if value in allowed else problem.format(value)

    return check


def dead_letter_routing_key(value: Any, arguments: Arguments) -> str | None:
    """Check for a string; invalid without a dead-letter exchange."""
    if not isinstance(value, str):
        return unacceptable(value)
    return None if DEAD_LETTER_EXCHANGE in arguments else "routing_key_but_no_dlx_defined"


def queue_version(value: Any, arguments: Arguments) -> str | None:
    """Check for a storage version of RabbitMQ; both are treated alike."""
    problem = not_negative(value, arguments)
    if problem is None and value not in (1, 2):
        return f"\"unsupported queue version '{value}'\""
    return problem


def unacceptable(value: Any) -> str:
    """Return the error term for a value of the wrong wire type."""
    return f"{{unacceptable_type,{field_type(value)}}}"


def max_age(value: Any, _arguments: Arguments) -> str | None:
    """Check for an interval such as `7D`."""
    if not isinstance(value, str):
        return unacceptable(value)
    return "invalid_max_age" if interval_ms(value) is None else None


def is_window(value: object) -> bool:
    """Whether a value is a valid de-duplication window: true, or a number of milliseconds."""
    if isinstance(value, bool):
        return value
    return isinstance(value, int) and 1 <= value <= WINDOW_MS_MAX


def window_ms(value: object) -> int | None:
    """Return the de-duplication window of a valid value in ms; None if the value is None."""
    if value is None:
        return None
    return WINDOW_MS if value is True else int(value)  # type: ignore[call-overload]


def dedup_window(value: Any, _arguments: Arguments) -> str | None:
    """Check for a de-duplication window: true, or milliseconds."""
    if is_window(value):
        return None
    return f'"expected true, or milliseconds from 1 to {WINDOW_MS_MAX}"'


def duration(ms_max: int, most: str) -> Callable[[Any], str | None]:
    """Return a check for a duration: milliseconds, or a text such as `14d`; at most `most`."""
    problem = (
        f'"expected a time of at most {most}: milliseconds, or a number with d, h, m or s, such as '
        '14d"'
    )
    return lambda value: None if 0 < (duration_ms(value) or 0) <= ms_max else problem


retention_time = of_value(duration(EXPIRY_MS_MAX, "3650d"))
session_time = duration(TERM_MS_MAX, "12h")


def retention_age(value: Any, arguments: Arguments) -> str | None:
    """Check for a duration; a stream may state it in one way only."""
    return retention_time(value, arguments) or not_beside("x-max-age", arguments)


def retention_bytes(value: Any, arguments: Arguments) -> str | None:
    """Check for a number of bytes; a stream may state it in one way only."""
    problem = kept_count(value, arguments)
    if problem is None and type_of(arguments) == "stream":
        problem = not_beside("x-max-length-bytes", arguments)
    return problem


def not_beside(other: str, arguments: Arguments) -> str | None:
    """Return the problem that an argument of the same meaning is there, or None."""
    return f'"not together with {other}"' if other in arguments else None


def group_names(value: Any, _arguments: Arguments) -> str | None:
    """Check for a list of names of consumer groups."""
    is_list = isinstance(value, list) and 0 < len(value) <= NAMED_GROUPS_MAX
    if is_list and all(map(is_group_name, value)):
        return None
    return f'"expected a list of 1 to {NAMED_GROUPS_MAX} names of consumer groups"'


def waits_for(value: Any, arguments: Arguments) -> str | None:
    """Check for groups that retention waits for; pointless without retention."""
    problem = group_names(value, arguments)
    if problem is None and type_of(arguments) != "stream":
        problem = with_retention(arguments)
    return problem


def with_retention(arguments: Arguments) -> str | None:
    """Return the problem that an argument is for queues with a retention only, or None."""
    if arguments.keys().isdisjoint(RETENTION_LIMITS):
        return f'"it needs one of {", ".join(RETENTION_LIMITS)}"'
    return None


def settling_groups(value: Any, arguments: Arguments) -> str | None:
    """Check for groups that settle for the queue; nobody does for a stream."""
    if type_of(arguments) == "stream":
        return '"a stream deletes by its retention alone, whoever has read what"'
    return group_names(value, arguments) or with_retention(arguments)


def waits_max(value: Any, arguments: Arguments) -> str | None:
    """Check for how long retention waits for groups, where it does."""
    problem = retention_time(value, arguments)
    if problem is None and RETENTION_WAITS_FOR not in arguments:
        problem = f'"it needs {RETENTION_WAITS_FOR}"'
    return problem


def compact(value: Any, arguments: Arguments) -> str | None:
    """Check for true or false; true for streams only."""
    problem = switch(value, arguments)
    if problem is None and value and type_of(arguments) != "stream":
        return '"only streams are compacted: other queues delete what was consumed"'
    return problem


def compact_delete_retention(value: Any, arguments: Arguments) -> str | None:
    """Check for how long compaction keeps tombstones: a duration; pointless without compaction."""
    problem = retention_time(value, arguments)
    if problem is None and arguments.get(COMPACT) is not True:
        problem = f'"it needs {COMPACT}"'
    return problem


def is_group_name(value: object) -> bool:
    """Whether a value is a valid name of a consumer group."""
    return isinstance(value, str) and 0 < len(value.encode()) <= NAME_BYTES_MAX


def consumer_group(value: Any, _arguments: Arguments) -> str | None:
    """Check for the name of a consumer group."""
    return None if is_group_name(value) else f'"expected a name of 1 to {NAME_BYTES_MAX} bytes"'


def group_session(value: Any, arguments: Arguments) -> str | None:
    """Check for the time within which a member of a group must settle: a duration."""
    return session_time(value) or of_groups(arguments)


def group_assign(value: Any, arguments: Arguments) -> str | None:
    """Check for the list of partitions that a member of a group wants."""
    if (
        not isinstance(value, list)
        or not value
        or any(integer(each, arguments) or each < 0 for each in value)
    ):
        return '"expected a list of partitions, such as [0, 1]"'
    return of_groups(arguments)


def of_groups(arguments: Arguments) -> str | None:
    """Return the problem that an argument is for members of groups only, or None."""
    return None if CONSUMER_GROUP in arguments else f'"it needs {CONSUMER_GROUP}"'


def stream_offset(value: Any, _arguments: Arguments) -> str | None:
    """Check for a stream offset specification."""
    return None if parse_start(value) is not None else _no_start(value)


def group_start(value: Any, _arguments: Arguments) -> str | None:
    """Check for where a consumer group begins."""
    return None if parse_group_start(value) is not None else _no_start(value)


def _no_start(value: Any) -> str:
    return f"{{invalid_stream_offset_arg,{{{field_type(value)},{term(value)}}}}}"


def anything(_value: Any, _arguments: Arguments) -> str | None:
    """Accept any value: invalid ones are ignored, as in RabbitMQ."""
    return None


def partition_count(value: Any, arguments: Arguments) -> str | None:
    """Check for a number of partitions, and that what else is stated holds across them."""
    problem = whole(1, PARTITIONS_MAX)(value)
    return problem or _across_partitions(arguments.get(PARTITION_BY, BY_KEY), arguments)


def _across_partitions(by: Any, arguments: Arguments) -> str | None:
    """Return what does not hold for messages that are placed `by` something, or None."""
    if arguments.get(GROUP_ORDERING) is True and by != MESSAGE_GROUP:
        return f'"together with {GROUP_ORDERING} only where {PARTITION_BY} is {MESSAGE_GROUP}"'
    if arguments.get("x-celery-eta") is True:
        return '"not together with x-celery-eta"'
    placed = f"where {PARTITION_BY} is {by}"
    if arguments.get(COMPACT) is True and by != BY_KEY:
        return f'"not together with {COMPACT} {placed}"'
    if DEDUP_WINDOW in arguments and by in NOT_BY_KEY:
        return f'"not together with {DEDUP_WINDOW} {placed}"'
    return None


def acks(value: Any, _arguments: Arguments) -> str | None:
    """Check for whether a confirm waits for copies."""
    is_one = isinstance(value, str) and value in {"all", "leader"}
    return None if is_one else '"expected all or leader"'


def partition_by(value: Any, arguments: Arguments) -> str | None:
    """Check for how messages are placed: by key, in turn, at random, or by a header's name."""
    if not isinstance(value, str) or not 0 < len(value.encode()) <= HEADER_NAME_BYTES_MAX:
        return (
            f'"expected {", ".join((BY_KEY, *NOT_BY_KEY))} or the name of a header, of 1 to '
            f'{HEADER_NAME_BYTES_MAX} bytes"'
        )
    return None if PARTITIONS in arguments else f'"only together with {PARTITIONS}"'


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

# In the order of checks, and of comparisons when a queue is redeclared.
CLASSIC: dict[str, Check] = {
    "x-expires": expiry,
    "x-message-ttl": time_to_live,
    DEAD_LETTER_EXCHANGE: text,
    "x-dead-letter-routing-key": dead_letter_routing_key,
    "x-dead-letter-topic": switch,
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
    "x-dead-letter-topic": switch,
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
    "x-stream-filter-size-bytes": anything,  # checked by check_stream_sizes
    "x-initial-cluster-size": positive,
    "x-queue-leader-locator": leader_locator,
}


def retry_keep_order(value: Any, arguments: Arguments) -> str | None:
    """Check for `key`; not with message groups, whose order blocks the group instead."""
    problem = RETRY_ARGUMENTS["retry-keep-order"](value)
    if problem is None and arguments.get("x-group-ordering") is True:
        return '"not together with x-group-ordering"'
    return problem


# Arguments of all queues except streams, for retries.
RETRY: dict[str, Check] = {
    **{f"x-{key}": of_value(problem_of) for key, problem_of in RETRY_ARGUMENTS.items()},
    "x-retry-keep-order": retry_keep_order,
}
# Other arguments of all queues except streams.
HOLDING: dict[str, Check] = {"x-celery-eta": switch}
# Arguments of every queue type beyond RabbitMQ's.
FEATURES: dict[str, Check] = {
    DEDUP_WINDOW: dedup_window,
    "x-publish-rate": rate,
    "x-publish-burst": rate,
    "x-consume-rate": rate,
    "x-consume-burst": rate,
    "x-retention": retention_age,
    "x-retention-bytes": retention_bytes,
    "x-retention-messages": kept_count,
    RETENTION_WAITS_FOR: waits_for,
    "x-retention-waits-max": waits_max,
    RETENTION_SETTLES: settling_groups,
    "x-group-delivery-limit": integer,
    "x-min-isr": copies,
    "x-acks": acks,
    PARTITIONS: partition_count,
    PARTITION_BY: partition_by,
    COMPACT: compact,
    COMPACT_DELETE_RETENTION: compact_delete_retention,
}
TYPES = {
    "classic": {**CLASSIC, **RETRY, **HOLDING, **FEATURES},
    "quorum": {**QUORUM, **RETRY, **HOLDING, **FEATURES},
    "stream": {**STREAM, **FEATURES},
}
# Reply texts name types by RabbitMQ's module names, which clients know.
MODULES = {
    "classic": "rabbit_classic_queue",
    "quorum": "rabbit_quorum_queue",
    "stream": "rabbit_stream_queue",
}
EVERY_ARGUMENT = {key for known in TYPES.values() for key in known}
GROUP_MEMBERS: dict[str, Check] = {
    CONSUMER_GROUP: consumer_group,
    GROUP_SESSION: group_session,
    GROUP_ASSIGN: group_assign,
}
# What would be different for each member of a group, though a partition has one at a time.
NOT_IN_GROUPS = (
    "x-priority",
    VISIBILITY_TIMEOUT,
    "x-consumer-timeout",
    "x-stream-filter",
    *FILTER_CHECKS,
)
# Arguments of consumers.
CONSUMER_TYPES: dict[str, dict[str, Check]] = {
    "classic": {
        "x-priority": integer,
        VISIBILITY_TIMEOUT: lease_term,
        **FILTER_CHECKS,
        **GROUP_MEMBERS,
    },
    "quorum": {
        "x-priority": integer,
        "x-consumer-timeout": time_to_live,
        VISIBILITY_TIMEOUT: lease_term,
        **FILTER_CHECKS,
        **GROUP_MEMBERS,
    },
    "stream": {
        **FILTER_CHECKS,
        **GROUP_MEMBERS,
        STREAM_OFFSET: stream_offset,
        "x-stream-filter": anything,
        "x-stream-match-unfiltered": anything,
    },
}
EVERY_CONSUMER_ARGUMENT = {key for known in CONSUMER_TYPES.values() for key in known}

STREAM_SEGMENT_BYTES_MAX = 3_000_000_000
# Size of RabbitMQ's Bloom filter per chunk; validated only, since filters here are exact.
STREAM_FILTER_BYTES_MIN, STREAM_FILTER_BYTES_MAX = 16, 255


def type_of(arguments: Arguments) -> str:
    """Return the queue type; classic if absent or unknown."""
    kind = arguments.get(QUEUE_TYPE)
    return kind if isinstance(kind, str) and kind in TYPES else "classic"


def known_arguments(arguments: Arguments) -> tuple[str, ...]:
    """Return the arguments that the queue's type knows."""
    return tuple(TYPES[type_of(arguments)])


def check_queue_arguments(definition: QueueDefinition) -> None:
    """Raise 406 unless every argument suits the queue's type, and its properties do."""
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
    elif not definition.durable:
        _check_keeps_nothing(name, arguments)


def _check_keeps_nothing(name: str, arguments: Arguments) -> None:
    """Raise 406 for retention of a transient or exclusive queue, whose log is not kept."""
    for key in RETENTION_ARGUMENTS:
        if key in arguments:
            problem = "only durable queues that are not exclusive keep messages"
            raise ChannelError(406, f"invalid arg '{key}' for {name}: \"{problem}\"")


def check_consumer_arguments(definition: QueueDefinition, arguments: Arguments) -> None:
    """Raise 406 unless every argument of a consumer suits the type of its queue."""
    name, kind = resource("queue", definition.name, definition.vhost), type_of(definition.arguments)
    if CONSUMER_GROUP in arguments:
        _check_member(name, arguments)
        arguments = {key: value for key, value in arguments.items() if key != STREAM_OFFSET}
    _check_known(name, kind, arguments, EVERY_CONSUMER_ARGUMENT, CONSUMER_TYPES)
    for key, check in CONSUMER_TYPES[kind].items():
        check_value(key, check, name, arguments)


def _check_member(name: str, arguments: Arguments) -> None:
    """Raise 406 for an argument that no member of a group may have, whatever its queue."""
    check_value(STREAM_OFFSET, group_start, name, arguments)
    for key in NOT_IN_GROUPS:
        if key in arguments:
            problem = f"not together with {CONSUMER_GROUP}"
            raise ChannelError(406, f"invalid arg '{key}' for {name}: \"{problem}\"")


def _check_known(
    name: str,
    kind: str,
    arguments: Arguments,
    every: Collection[str],
    types: Mapping[str, Collection[str]],
) -> None:
    """Raise 406 for an argument that only other queue types know."""
    for key in arguments:
        if key in every and key not in types[kind]:
            raise ChannelError(406, f"invalid arg '{key}' for {name} of queue type {MODULES[kind]}")


def check_value(key: str, check: Check, name: str, arguments: Arguments) -> None:
    """Raise 406 if an argument is present and invalid."""
    if key in arguments:
        problem = check(arguments[key], arguments)
        if problem is not None:
            raise ChannelError(406, f"invalid arg '{key}' for {name}: {problem}")


def check_replicated_properties(definition: QueueDefinition, name: str) -> None:
    """Raise 406 unless the queue is durable, non-exclusive and not auto-delete."""
    properties = {
        "auto-delete": definition.auto_delete,
        "exclusive-owner": definition.exclusive,
        "non-durable": not definition.durable,
    }
    for key, wrong in properties.items():
        if wrong:
            raise ChannelError(406, f"invalid property '{key}' for {name}")


def check_stream_sizes(arguments: Arguments) -> None:
    """Raise 406 for invalid sizes of a stream, with RabbitMQ's texts, which name no queue."""
    segment = arguments.get("x-stream-max-segment-size-bytes", 0)
    if segment > STREAM_SEGMENT_BYTES_MAX:
        raise ChannelError(406, "Exceeded max value for x-stream-max-segment-size-bytes")
    size = arguments.get("x-stream-filter-size-bytes", STREAM_FILTER_BYTES_MIN)
    if integer(size, arguments) is not None:
        raise ChannelError(406, "Invalid type for x-stream-filter-size-bytes")
    if not STREAM_FILTER_BYTES_MIN <= size <= STREAM_FILTER_BYTES_MAX:
        raise ChannelError(406, "Invalid value for x-stream-filter-size-bytes")


def check_server_named(arguments: Arguments) -> None:
    """Raise 406 for a type that cannot be server-named."""
    kind = type_of(arguments)
    if kind != "classic":
        raise ChannelError(406, f"Cannot declare a server-named queue for type {MODULES[kind]}")


def check_exchange_name(key: str, name: str, arguments: Arguments) -> None:
    """Raise 406 unless the argument, if present, can name an exchange."""
    if key in arguments and not isinstance(arguments[key], str):
        kind = field_type(arguments[key])
        raise ChannelError(406, f"invalid type '{kind}' for arg '{key}' in {name}")


def with_default_type(arguments: Arguments, default: str, *, replicable: bool) -> Arguments:
    """Return the arguments with the virtual host's default queue type, if none is given.

    `replicable`: the queue is durable, neither exclusive nor auto-delete; others stay classic,
    since the default must not make a valid declaration fail.
    """
    if QUEUE_TYPE in arguments or default == "classic" or not replicable:
        return arguments
    return {**arguments, QUEUE_TYPE: default}
