"""The node that commands work on: a running one, or the files of a stopped one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, Protocol

from leveret.core.admin.shown import integer
from leveret.core.definitions.administration import AdministrationError
from leveret.core.settings.partitioning import numbers_text
from leveret.ports.waiting import until

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping

    from leveret.core.definitions.administration import Administration
    from leveret.core.logs.atomic import AtomicWrites
    from leveret.core.queues.declared_queue import DeclaredQueue
    from leveret.core.queues.open_queue import OpenQueue
    from leveret.core.vhost import Vhost
    from leveret.ports.after_all import AfterAll

__all__ = [
    "AdminBroker",
    "AdminNode",
    "changed",
    "not_running",
    "partition_of",
    "queue_of",
    "vhost_of",
    "waited",
]

SAFE_SECONDS_MAX: Final = 30  # until what was asked for is on the disk


class AdminBroker(Protocol):
    """Parts of a running broker that commands of features use."""

    @property
    def vhosts(self) -> Mapping[str, Vhost]:
        """The virtual hosts, by name."""
        ...

    @property
    def connections(self) -> Collection[Any]:
        """The clients (see core.clients.Client)."""
        ...

    @property
    def atomic(self) -> AtomicWrites:
        """Writes to several logs at once."""
        ...

    def find_queue(self, vhost: Vhost, name: str, user: object | None) -> DeclaredQueue:
        """Return a queue that a connection may use. Raises ChannelError 404 and 405."""
        ...


class AdminNode(Protocol):
    """Parts of a node that every command may use; features add theirs in their own protocols."""

    @property
    def administration(self) -> Administration:
        """The definitions."""
        ...

    @property
    def vhosts(self) -> Mapping[str, Vhost]:
        """The virtual hosts, by name."""
        ...

    @property
    def broker(self) -> AdminBroker | None:
        """The broker of a running node, else None."""
        ...


def not_running() -> AdministrationError:
    """Build the error of an operation that needs a running node."""
    return AdministrationError("not_running", "no node is running: start one with `leveret serve`")


def vhost_of(node: AdminNode, name: str) -> Vhost:
    """Return the virtual host of a request. Raises AdministrationError."""
    if node.broker is None:
        raise not_running()
    vhost = node.broker.vhosts.get(name)
    if vhost is None:
        raise AdministrationError("not_found", f"no vhost '{name}'")
    return vhost


def queue_of(node: AdminNode, vhost_name: str, name: str) -> DeclaredQueue:
    """Return the queue of a request, exclusive or not. Raises AdministrationError."""
    vhost = vhost_of(node, vhost_name)
    assert node.broker is not None, "it has the virtual host"
    held = vhost.queues.get(name)
    if held is None:
        raise AdministrationError("not_found", vhost.no_queue(name))
    return node.broker.find_queue(vhost, name, held.owner)


def partition_of(queue: DeclaredQueue, number: object = None) -> OpenQueue:
    """Return a partition of a queue by its number; the only one need not be stated.

    Raises AdministrationError.
    """
    parts = {part.number: part for part in queue.partitions}
    if number is None and len(parts) == 1:
        return queue.partitions[0]
    part = parts.get(integer("partition", number)) if number is not None else None
    if part is None:
        text = f"queue '{queue.name}' has the partitions {numbers_text(parts)}: state one of them"
        raise AdministrationError("invalid" if number is None else "not_found", text)
    return part


async def changed(told: AfterAll) -> None:
    """Wait until a change is durable. Raises AdministrationError."""
    await waited(lambda: not told.pending)
    if told.failed:
        raise AdministrationError("invalid", "it could not be stored: see the node's log")


async def waited(is_so: Callable[[], bool]) -> None:
    """Wait until something is so. Raises AdministrationError if that takes too long."""
    try:
        await until(is_so, SAFE_SECONDS_MAX)
    except TimeoutError:
        raise AdministrationError("invalid", "it takes too long: see the node's log") from None
