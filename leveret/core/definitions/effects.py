"""Warnings about definitions without effect here, for users coming from RabbitMQ.

Such definitions are stored as they are, so that an export returns them, except exchanges of unknown
types, which an import skips. `warnings` reports those of a document to the importing user,
`without_effect` those of a single definition.
"""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from leveret.core.definitions.parameters import CLUSTER_NAME
from leveret.core.exchanges import DELAYED_MESSAGE, DELAYED_TYPE, EXCHANGE_TYPES
from leveret.core.settings.arguments import EVERY_ARGUMENT
from leveret.core.settings.replication import ACKS, ALSO_REPLICAS, IN_SYNC_MIN, REPLICAS, Acks
from leveret.features.alerts.rules import COMPONENT as ALERT
from leveret.features.shovels import parameters as shovels
from leveret.ports.definitions import (
    ExchangeDefinition,
    GlobalParameterDefinition,
    ParameterDefinition,
    PolicyDefinition,
    QueueDefinition,
)
from leveret.ports.log_text import quoted

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from leveret.core.definitions.document import Parsed
    from leveret.ports.definitions import Json

__all__ = ["is_of_unknown_type", "warnings", "without_effect"]

PLACES_MAX: Final = 3  # places listed in a warning
WARNINGS_MAX: Final = 100
HARMLESS_GLOBALS: Final = {CLUSTER_NAME, "cluster_tags", "internal_cluster_id"}

NO_FEDERATION: Final = "there is no federation, nothing comes from the upstream"
NO_MIRRORS: Final = "there are no mirrored queues, in a cluster replicas are asked for instead"
ONE_NODE: Final = "a node that is in no cluster has the only replica of every queue"
NO_CHOICE: Final = "the nodes for a queue are not chosen by hand: a cluster spreads queues evenly"
ALWAYS_ON_DISK: Final = "queues keep messages in their logs on disk, memory is a bounded cache"
NO_SHARDING: Final = "there is no sharding"
COMPONENTS: Final = {
    "policy": "a policy is not set as a parameter",
    "operator_policy": "a policy is not set as a parameter",
    "vhost-limits": "a limit is not set as a parameter",
    "federation-upstream": NO_FEDERATION,
    "federation-upstream-set": NO_FEDERATION,
}
# Settings of policies; arguments of queues are the same with `x-` before them.
SETTINGS: Final = {
    "federation-upstream": NO_FEDERATION,
    "federation-upstream-pattern": NO_FEDERATION,
    "federation-upstream-set": NO_FEDERATION,
    "ha-mode": NO_MIRRORS,
    "ha-params": NO_MIRRORS,
    "ha-policy": NO_MIRRORS,
    "ha-promote-on-failure": NO_MIRRORS,
    "ha-promote-on-shutdown": NO_MIRRORS,
    "ha-sync-batch-size": NO_MIRRORS,
    "ha-sync-mode": NO_MIRRORS,
    "member-placement-tag": NO_CHOICE,
    "queue-leader-locator": NO_CHOICE,
    "queue-master-locator": NO_CHOICE,
    **dict.fromkeys((REPLICAS, ACKS, IN_SYNC_MIN, *ALSO_REPLICAS), ONE_NODE),
    "max-in-memory-bytes": ALWAYS_ON_DISK,
    "max-in-memory-length": ALWAYS_ON_DISK,
    "queue-mode": ALWAYS_ON_DISK,
    "queue-version": "there is one way to store a queue",
    "routing-key": NO_SHARDING,
    "shards-per-node": NO_SHARDING,
}
# Values that ask for nothing special: one member, the usual mode.
NOTHING_ASKED: Final[dict[str, Json]] = {
    **dict.fromkeys((REPLICAS, IN_SYNC_MIN, *ALSO_REPLICAS), 1),
    ACKS: Acks.ALL,
    "queue-mode": "default",
}


class Remark(NamedTuple):
    """Definition without effect, and the reason; equal remarks are reported together."""

    subject: str
    reason: str

    def __str__(self) -> str:
        return f"{self.subject} has no effect: {self.reason}"


def warnings(parsed: Parsed, *, in_cluster: bool = False) -> list[str]:
    """Return a sentence for each kind of definition without effect, with its places."""
    places: defaultdict[Remark, list[str]] = defaultdict(list)
    for items in parsed.items.values():
        for item in items:
            for remark in _remarks(item.definition, in_cluster=in_cluster):
                name = getattr(item.definition, "name", "")
                places[remark].append(f"{item.place} {quoted(name)}")
    told = [f"{remark} ({_listed(found)})" for remark, found in places.items()]
    return told[:WARNINGS_MAX]


def without_effect(definition: object, *, in_cluster: bool = False) -> list[str]:
    """Return a sentence for each part of one definition that has no effect."""
    found = _remarks(definition, in_cluster=in_cluster)
    return [str(remark) for remark in found][:WARNINGS_MAX]


def is_of_unknown_type(definition: object) -> bool:
    """Whether it is an exchange of an unknown type."""
    if not isinstance(definition, ExchangeDefinition):
        return False
    inner = definition.arguments.get(DELAYED_TYPE)
    is_delayed = definition.type == DELAYED_MESSAGE and isinstance(inner, str)
    return (inner if is_delayed else definition.type) not in EXCHANGE_TYPES


def _listed(places: list[str]) -> str:
    more = len(places) - PLACES_MAX
    return ", ".join(places[:PLACES_MAX]) + (f" and {more} more" if more > 0 else "")


def _remarks(definition: object, *, in_cluster: bool) -> Iterable[Remark]:
    looks = LOOKS.get(type(definition))
    found = looks(definition) if looks is not None else ()
    return (remark for remark in found if not (in_cluster and remark.reason == ONE_NODE))


def _of_parameter(parameter: ParameterDefinition) -> Iterator[Remark]:
    if parameter.component == shovels.COMPONENT:
        try:
            shovels.ShovelDefinition.parse(parameter.vhost, parameter.name, parameter.value)
        except shovels.UnspokenProtocolError:
            yield Remark("shovel of AMQP 1.0", "shovels speak AMQP 0-9-1 here, nothing is moved")
        except shovels.InvalidShovelError:
            return  # it is refused
    elif parameter.component != ALERT:
        reason = COMPONENTS.get(parameter.component, "no component of this name runs here")
        yield Remark(f"parameter of {quoted(parameter.component)}", reason)


def _of_global_parameter(parameter: GlobalParameterDefinition) -> Iterator[Remark]:
    if parameter.name not in HARMLESS_GLOBALS:
        yield Remark(f"global parameter {quoted(parameter.name)}", "nothing here reads it")


def _of_policy(policy: PolicyDefinition) -> Iterator[Remark]:
    for key, value in policy.definition.items():
        if key in SETTINGS and NOTHING_ASKED.get(key) != value:
            yield Remark(f"setting {key} of policies", SETTINGS[key])


def _of_queue(queue: QueueDefinition) -> Iterator[Remark]:
    for key, value in queue.arguments.items():
        setting = key.removeprefix("x-")
        if key.startswith("x-") and setting in SETTINGS:
            if NOTHING_ASKED.get(setting) != value:
                yield Remark(f"argument {key} of queues", SETTINGS[setting])
        elif key not in EVERY_ARGUMENT:
            yield Remark(f"argument {quoted(key)} of queues", "it is unknown")


def _of_exchange(exchange: ExchangeDefinition) -> Iterator[Remark]:
    if is_of_unknown_type(exchange):
        reason = "the type is unknown, it is left out with its bindings"
        yield Remark(f"exchange of type {quoted(exchange.type)}", reason)


LOOKS: Final[dict[type, Callable[[Any], Iterator[Remark]]]] = {
    ParameterDefinition: _of_parameter,
    GlobalParameterDefinition: _of_global_parameter,
    PolicyDefinition: _of_policy,
    QueueDefinition: _of_queue,
    ExchangeDefinition: _of_exchange,
}
