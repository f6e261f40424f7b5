"""Import of definitions: rehearsed on a model first, then applied, so that it is all or nothing.

Existing users, virtual hosts, permissions, parameters and policies are updated; existing queues and
exchanges stay unchanged, since messages depend on them, and differences from the document are
reported. Importing the same document again changes nothing.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from leveret.core.chores import at_once
from leveret.core.definitions.administration import AdministrationError
from leveret.core.definitions.differences import difference
from leveret.core.definitions.document import DefinitionsError, VhostLimits
from leveret.core.definitions.effects import is_of_unknown_type
from leveret.core.definitions.model import Model, NullStore
from leveret.errors import AmqpError
from leveret.ports.definitions import (
    BindingDefinition,
    Definitions,
    ExchangeDefinition,
    GlobalParameterDefinition,
    ParameterDefinition,
    PermissionDefinition,
    PolicyDefinition,
    QueueDefinition,
    TopicPermissionDefinition,
    UserDefinition,
    VhostDefinition,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from leveret.core.access.limits import NodeLimits
    from leveret.core.definitions.administration import Administration
    from leveret.core.definitions.document import Item, Parsed
    from leveret.core.vhost import Vhost

__all__ = ["Import", "add_contents", "rehearse", "snapshot"]

# Items between two passes of the event loop: a queue takes some hundred microseconds, so an import
# delays clients of the node by one or two milliseconds.
SLICE_ITEMS: Final = 10
# Exchanges before queues, whose dead letters go there; limits last, so that an export with a limit
# below the present count can be imported.
ORDER: Final = (
    "users",
    "vhosts",
    "permissions",
    "topic_permissions",
    "parameters",
    "global_parameters",
    "policies",
    "exchanges",
    "queues",
    "bindings",
)


class Import:
    """Import into `administration` and `vhosts`, of a broker or a model.

    `left_out` are the places of bindings without one of their ends; `kept` are sentences on
    existing queues and exchanges that differ from the document. `skipped` counts, by section, what
    was not imported: these, and exchanges of an unknown type.
    """

    def __init__(
        self, parsed: Parsed, administration: Administration, vhosts: Mapping[str, Vhost]
    ) -> None:
        self._parsed = parsed
        self._administration = administration
        self._vhosts = vhosts
        self.left_out: list[str] = []
        self.kept: list[str] = []
        self.skipped: Counter[str] = Counter()

    def perform(self) -> Iterator[None]:
        """Import everything, yielding regularly to other work. Raises DefinitionsError."""
        makers = self._makers()
        for number, item in enumerate(self._ordered(), start=1):
            self._make(makers[type(item.definition)], item)
            if number % SLICE_ITEMS == 0:
                yield

    def _ordered(self) -> Iterator[Item]:
        limits = []
        for section in ORDER:
            for item in self._parsed.items.get(section, ()):
                if is_of_unknown_type(item.definition):
                    self.skipped[section] += 1
                elif isinstance(item.definition, VhostLimits):
                    limits.append(item)
                else:
                    yield item
        yield from limits

    def _makers(self) -> dict[type, Callable[[Any, str], None]]:
        """Return what imports each kind; it is not kept, as that would be a reference cycle."""
        administration = self._administration
        return {
            UserDefinition: self._user,
            VhostDefinition: self._vhost,
            PermissionDefinition: lambda one, _: administration.set_permission(one),
            TopicPermissionDefinition: lambda one, _: administration.set_topic_permission(one),
            ParameterDefinition: lambda one, _: administration.set_parameter(one),
            GlobalParameterDefinition: lambda one, _: administration.set_global_parameter(one),
            PolicyDefinition: lambda one, _: administration.set_policy(one, imported=True),
            VhostLimits: lambda one, _: administration.set_vhost_limits(one.vhost, one.limits),
            ExchangeDefinition: self._exchange,
            QueueDefinition: self._queue,
            BindingDefinition: self._binding,
        }

    def _make(self, make: Callable[[Any, str], None], item: Item) -> None:
        try:
            make(item.definition, item.place)
        except AdministrationError as error:
            raise DefinitionsError(item.place, " ".join(str(error).split())) from None
        except AmqpError as error:
            raise DefinitionsError(item.place, error.explanation) from None

    def _user(self, user: UserDefinition, _place: str) -> None:
        self._administration.put_user(user)

    def _vhost(self, vhost: VhostDefinition, _place: str) -> None:
        """Import a virtual host; limits are parameters, so that existing ones are kept."""
        held = self._vhosts.get(vhost.name)
        if held is not None:
            vhost = replace(vhost, limits=held.definition.limits)
        self._administration.put_vhost(vhost)

    def _exchange(self, exchange: ExchangeDefinition, _place: str) -> None:
        vhost = self._of(exchange.vhost)
        held = vhost.exchanges.get(exchange.name)
        vhost.add_exchange(exchange)
        if held is not None:
            self._compare(held.definition, exchange, "exchanges")

    def _queue(self, queue: QueueDefinition, _place: str) -> None:
        vhost = self._of(queue.vhost)
        held = vhost.find_queue(queue.name)
        vhost.add_queue(queue)
        if held is not None:
            self._compare(held.definition, queue, "queues")

    def _compare(
        self,
        held: QueueDefinition | ExchangeDefinition,
        stated: QueueDefinition | ExchangeDefinition,
        section: str,
    ) -> None:
        differs = difference(held, stated)
        if differs is not None:
            self.kept.append(differs)
            self.skipped[section] += 1

    def _binding(self, binding: BindingDefinition, place: str) -> None:
        if not self._of(binding.vhost).add_binding(binding):
            self.left_out.append(place)

    def _of(self, vhost: str) -> Vhost:
        self._administration.vhost(vhost)  # raises if it does not exist
        return self._vhosts[vhost]


def rehearse(parsed: Parsed, held: Definitions, limits: NodeLimits | None) -> Import:
    """Try an import on a model with the definitions `held`. Raises DefinitionsError.

    It touches no shared state, so it can run in a worker thread.
    """
    model = Model(held, NullStore(), lambda: "", limits)
    rehearsal = Import(parsed, model.administration, model.vhosts)
    try:
        at_once(rehearsal.perform())
    finally:
        model.close()
    return rehearsal


def snapshot(administration: Administration) -> Definitions:
    """Return all definitions except the contents of virtual hosts, which `add_contents` adds."""
    access, policies = administration.access, administration.policies
    return Definitions(
        vhosts=administration.vhosts(),
        users=access.users(),
        permissions=access.permissions(),
        topic_permissions=access.topic_permissions(),
        parameters=administration.parameters.select(),
        global_parameters=administration.parameters.all_global(),
        policies=[*policies.select(operator=False), *policies.select(operator=True)],
    )


def add_contents(definitions: Definitions, vhosts: Mapping[str, Vhost]) -> None:
    """Add the contents of virtual hosts, except predeclared exchanges and exclusive queues.

    May run in a thread beside a running broker.
    """
    for _, vhost in sorted(vhosts.items()):
        held = vhost.definitions()
        definitions.exchanges += held.exchanges
        definitions.queues += held.queues
        definitions.bindings += held.bindings
