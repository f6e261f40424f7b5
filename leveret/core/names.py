"""Names of queues and exchanges: reserved, server-generated, and in error texts."""

from __future__ import annotations

from typing import TYPE_CHECKING

from leveret.errors import ChannelError

if TYPE_CHECKING:
    from collections.abc import Callable

RESERVED_PREFIX = "amq."
SERVER_NAMED_PREFIX = "amq.gen"
# Queue of each virtual host in a cluster, beside which delayed messages wait: the broker's own.
DELAYED_QUEUE = "leveret.delayed"
NAME_BYTES_MAX = 255  # a name is a short string
# Limit that leaves room for the unique part.
NAME_PREFIX_BYTES_MAX = 64

LINE_ENDS = str.maketrans("", "", "\r\n")


def stripped(name: str) -> str:
    """Return a name without carriage returns and line feeds; all other characters are allowed."""
    return name.translate(LINE_ENDS)


def resource(kind: str, name: str, vhost: str) -> str:
    """Return a queue or exchange as named in reply texts: `queue 'q' in vhost '/'`."""
    return f"{kind} '{name}' in vhost '{vhost}'"


def not_found(kind: str, name: str, vhost: str) -> ChannelError:
    """Return the 404 error of a missing queue or exchange."""
    return ChannelError(404, f"no {resource(kind, name, vhost)}")


def topic_beside(queue: str, suffix: str, partition: int = 0) -> str:
    """Return the name of a partition's own topic: with the suffix, a very long queue name cut."""
    suffix += f".{partition}" if partition else ""
    return queue.encode()[: NAME_BYTES_MAX - len(suffix)].decode(errors="ignore") + suffix


def check_not_reserved(kind: str, name: str) -> None:
    """Raise 403 for a name `amq.*`, which only the broker may create."""
    if name.startswith(RESERVED_PREFIX):
        raise ChannelError(403, f"{kind} name '{name}' contains reserved prefix 'amq.*'")


def server_named(random_name: Callable[[], str], prefix: object = None) -> str:
    """Return a generated name for a queue declared without one.

    `random_name` gives a string that is unique for practical purposes; `prefix` is the argument
    `x-name-prefix`, which replaces `amq.gen`. Raises 406 for a prefix longer than 64 bytes.
    """
    if not isinstance(prefix, str):
        return f"{SERVER_NAMED_PREFIX}-{random_name()}"
    prefix = stripped(prefix)
    if len(prefix.encode()) > NAME_PREFIX_BYTES_MAX:
        raise ChannelError(
            406, f"Queue name prefix '{prefix}' exceeds the {NAME_PREFIX_BYTES_MAX}-byte limit"
        )
    check_not_reserved("queue", prefix)
    return f"{prefix}-{random_name()}"
