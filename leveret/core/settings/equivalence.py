"""Redeclaration: check that a declaration is equivalent to the existing object, else 406."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from leveret.core.erlang_terms import atom, field_type, frozen, plain
from leveret.core.names import resource
from leveret.core.settings.arguments import ALTERNATE_EXCHANGE, DEDUP_WINDOW, known_arguments
from leveret.core.settings.partitioning import PARTITIONS
from leveret.errors import ChannelError

if TYPE_CHECKING:
    from leveret.ports.definitions import Arguments, ExchangeDefinition, QueueDefinition

MISSING = object()


def check_exchange(current: ExchangeDefinition, received: ExchangeDefinition) -> None:
    """Raise 406 unless `received` is equivalent to the existing exchange `current`."""
    name = resource("exchange", current.name, current.vhost)
    if received.type != current.type:
        raise inequivalent("type", name, f"'{atom(received.type)}'", f"'{atom(current.type)}'")
    check_flag("durable", name, received.durable, current.durable)
    check_flag("auto_delete", name, received.auto_delete, current.auto_delete)
    check_flag("internal", name, received.internal, current.internal)
    for key in (ALTERNATE_EXCHANGE, DEDUP_WINDOW):
        check_argument(key, name, received.arguments, current.arguments)


def check_queue(current: QueueDefinition, received: QueueDefinition) -> None:
    """Raise 406 unless `received` is equivalent to the existing queue `current`.

    Arguments unknown to the queue's type are not compared. Access to an exclusive queue has been
    checked before.
    """
    name = resource("queue", received.name, current.vhost)
    if received.name != current.name:
        name += f" (now called '{current.name}')"
    check_flag("durable", name, received.durable, current.durable)
    check_flag("auto_delete", name, received.auto_delete, current.auto_delete)
    for key in known_arguments(current.arguments):
        note = _partitions_now(current) if key == PARTITIONS else ""
        check_argument(key, name, received.arguments, current.arguments, note)


def _partitions_now(current: QueueDefinition) -> str:
    """Return how many partitions a queue has, where that is not what it was declared with."""
    if current.layout is None:
        return ""
    return f", with which it was declared; it has {len(current.layout.active)} partitions now"


def check_flag(key: str, name: str, received: bool, current: bool) -> None:
    """Raise 406 unless both flags are equal."""
    if received != current:
        raise inequivalent(key, name, quoted(received), quoted(current))


def check_argument(
    key: str, name: str, received: Arguments, current: Arguments, note: str = ""
) -> None:
    """Raise 406 unless an argument is equal; the text depends on whether both sides have it.

    A `note` is put behind RabbitMQ's text.
    """
    new, old = received.get(key, MISSING), current.get(key, MISSING)
    if new is MISSING and old is MISSING:
        return
    if new is MISSING or old is MISSING:
        # A queue declared before types existed is classic.
        if not (key == "x-queue-type" and "classic" in (new, old)):
            raise inequivalent(key, name, described(new), described(old) + note)
    elif frozen(new) != frozen(old):
        raise inequivalent(key, name, quoted(new), quoted(old) + note)


def inequivalent(key: str, name: str, received: str, current: str) -> ChannelError:
    """Return the 406 error that names the difference."""
    return ChannelError(
        406, f"inequivalent arg '{key}' for {name}: received {received} but current is {current}"
    )


def quoted(value: Any) -> str:
    """Format a value that both sides have."""
    return f"'{plain(value)}'"


def described(value: Any) -> str:
    """Format a value that only one side has, or its absence."""
    if value is MISSING:
        return "none"
    return f"the value '{plain(value)}' of type '{field_type(value)}'"
