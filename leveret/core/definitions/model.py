"""Model of a node's definitions, without messages.

The command line works on it if no node runs, and an import is rehearsed on it before anything is
changed. It behaves like a broker, since it consists of the same parts; only its queues are mere
names.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from leveret.core.access.limits import Quota
from leveret.core.access.permissions import AccessControl
from leveret.core.chores import at_once
from leveret.core.definitions.administration import Administration
from leveret.core.settings.policies import NO_POLICY, Policies
from leveret.core.vhost import Vhost
from leveret.ports.counters import Counters
from leveret.ports.definitions import Definitions
from leveret.ports.records import BatchBuilder

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from leveret.core.access.limits import NodeLimits
    from leveret.core.routing.bindings import QueueLike
    from leveret.core.routing.message import Message
    from leveret.ports import MetadataStore
    from leveret.ports.definitions import Definition, QueueDefinition, VhostDefinition

__all__ = ["Model", "NamedQueue", "NullStore"]


class NamedQueue:
    """Queue without a log: nothing is ever routed to it."""

    message_count = leased_count = delayed_count = dead_letters_waiting = 0
    consumer_count = held_bytes = 0
    policy = NO_POLICY
    builder = BatchBuilder()
    counters = Counters()
    partitions = ()

    def __init__(self, definition: QueueDefinition, owner: object | None) -> None:
        self.definition = definition
        self.owner = owner
        self.gone = False


class NullStore:
    """Null store (ports.MetadataStore), for rehearsals."""

    pending = False

    def put(self, definition: Definition) -> None:
        """Do nothing."""

    def remove(self, definition: Definition) -> None:
        """Do nothing."""

    def remove_vhost(self, name: str) -> None:
        """Do nothing."""

    async def load(self) -> Definitions:
        """Return no definitions."""
        return Definitions()

    async def flush(self) -> None:
        """Do nothing: nothing is pending."""

    async def close(self) -> None:
        """Do nothing."""


class Model:
    """`administration` and `vhosts` as in a broker, on the definitions of `store`.

    `random_name()` returns a string that is unique for practical purposes, as stored with queues.
    """

    def __init__(
        self,
        definitions: Definitions,
        store: MetadataStore,
        random_name: Callable[[], str],
        limits: NodeLimits | None = None,
    ) -> None:
        self._store = store
        self._random_name = random_name
        self._policies = Policies()
        self._quota = Quota(limits)
        self.vhosts: dict[str, Vhost] = {}
        self.administration = Administration(
            AccessControl(),
            store,
            random_name=random_name,
            on_vhost_added=self._add_vhost,
            on_vhost_deleted=self._remove_vhost,
            on_vhost_changed=self._change_vhost,
            policies=self._policies,
        )
        self.administration.restore(definitions)
        for vhost in definitions.vhosts:
            self._add_vhost(vhost)
        for name, opened in self.vhosts.items():
            opened.restore(
                [exchange for exchange in definitions.exchanges if exchange.vhost == name],
                [queue for queue in definitions.queues if queue.vhost == name],
                [binding for binding in definitions.bindings if binding.vhost == name],
            )

    def close(self) -> None:
        """Take the virtual hosts apart, so that they are freed without the garbage collector.

        A node's collector does not visit what it has frozen (`leveret.node.collector`).
        """
        for name in list(self.vhosts):
            self._remove_vhost(name)

    def _add_vhost(self, definition: VhostDefinition) -> None:
        self.vhosts[definition.name] = Vhost(
            definition,
            open_queue=NamedQueue,
            store=self._store,
            random_name=self._random_name,
            random_below=lambda _: 0,
            deposit=nowhere,
            policies=self._policies,
            quota=self._quota,
        )

    def _change_vhost(self, definition: VhostDefinition) -> None:
        self.vhosts[definition.name].definition = definition

    def _remove_vhost(self, name: str) -> None:
        vhost = self.vhosts.pop(name)
        at_once(vhost.closing(vhost.remove_queue))


def nowhere(queues: Iterable[QueueLike], message: Message) -> None:
    """Drop a message."""
