"""Definitions as a JSON document in RabbitMQ's format, for export and import.

    {"users": […], "vhosts": […], "permissions": […], …, "bindings": […]}

`document` writes it, `parse` reads it, also from RabbitMQ. A document of a single virtual host has
no users and names no virtual host. Limits of virtual hosts and operator policies are among the
parameters. Any error in a document is a DefinitionsError that names the place, raised before
anything is changed.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from leveret.core.access.passwords import RABBITMQ_DEFAULT_ALGORITHM, export_hash, import_hash
from leveret.core.chores import sorted_in_runs
from leveret.core.definitions.fields import DefinitionsError, Fields
from leveret.core.json_fields import decode_json, plain
from leveret.core.settings.partitioning import PARTITIONS_MAX
from leveret.ports.definitions import (
    BindingDefinition,
    Definitions,
    ExchangeDefinition,
    GlobalParameterDefinition,
    Json,
    ParameterDefinition,
    PartitionLayout,
    Paused,
    PermissionDefinition,
    PolicyDefinition,
    QueueDefinition,
    TopicPermissionDefinition,
    UserDefinition,
    VhostDefinition,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from leveret.ports.definitions import Definition, Limits

__all__ = [
    "OPERATOR_POLICY",
    "VHOST_LIMITS",
    "DefinitionsError",
    "Item",
    "Parsed",
    "VhostLimits",
    "decode",
    "document",
    "parameter_rows",
    "parse",
    "policy_row",
    "user_row",
]

DOCUMENT_BYTES_MAX: Final = 64 * 1024 * 1024  # some 200,000 queues with their bindings
RESERVED_PREFIX: Final = "amq."
OPERATOR_POLICY: Final = "operator_policy"
VHOST_LIMITS: Final = "vhost-limits"
# Information about the document; other unknown keys are reported to the importing user.
ABOUT: Final = {
    "rabbit_version",
    "rabbitmq_version",
    "product_name",
    "product_version",
    "rabbitmq_definition_format",
    "original_cluster_name",
    "original_vhost_name",
    "explanation",
}
# Properties of a single virtual host's document; an import into another one ignores them.
ABOUT_VHOST: Final = {"description", "tags", "metadata", "default_queue_type", "limits"}


@dataclass(frozen=True, slots=True)
class VhostLimits:
    """Limits of a virtual host, which may be defined elsewhere in the document."""

    vhost: str
    limits: Limits


@dataclass(frozen=True, slots=True)
class Item:
    """One definition in a document, and its place."""

    place: str
    definition: Definition | VhostLimits


@dataclass(slots=True)
class Parsed:
    """Definitions of a document, in order, by section.

    `ignored` are the places of unknown fields.
    """

    items: dict[str, list[Item]] = field(default_factory=dict)
    ignored: list[str] = field(default_factory=list)


def decode(text: bytes | str) -> Json:
    """Parse JSON text. Raises DefinitionsError."""
    if len(text) > DOCUMENT_BYTES_MAX:
        raise DefinitionsError("", f"longer than {DOCUMENT_BYTES_MAX} bytes")
    try:
        return decode_json(text, parse_constant=_no_number)
    except RecursionError:
        raise DefinitionsError("", "nested too deeply") from None
    except ValueError as error:
        raise DefinitionsError("", f"not JSON: {error}") from None


def _no_number(name: str) -> Any:
    raise ValueError(f"{name} is no JSON number")


def parse(value: Json, vhost: str | None = None) -> Parsed:
    """Parse a document; with `vhost`, one of a single virtual host. Raises DefinitionsError."""
    if not isinstance(value, dict):
        raise DefinitionsError("", "an object was expected")
    parsed = Parsed()
    sections = SECTIONS if vhost is None else {key: SECTIONS[key] for key in VHOST_SECTIONS}
    known = ABOUT if vhost is None else ABOUT | ABOUT_VHOST
    parsed.ignored += [str(key) for key in value if key not in sections and key not in known]
    for section, read in sections.items():
        entries = value.get(section)
        if entries is None:
            entries = []
        if not isinstance(entries, list):
            raise DefinitionsError(section, "a list was expected")
        items = parsed.items[section] = []
        for number, entry in enumerate(entries):
            fields = Fields(f"{section}[{number}]", entry, vhost)
            definition = read(fields)
            if definition is not None:
                items.append(Item(fields.place, definition))
            parsed.ignored += fields.unread()
    return parsed


def _user(fields: Fields) -> UserDefinition:
    if fields.has("password"):
        raise fields.error("password", "only its hash can be imported: see leveret hash-password")
    algorithm = fields.text("hashing_algorithm", RABBITMQ_DEFAULT_ALGORITHM)
    try:
        password_hash = import_hash(algorithm, fields.text("password_hash", ""))
    except ValueError as error:
        raise fields.error("password_hash", str(error)) from None
    return UserDefinition(
        fields.text("name"), password_hash, fields.tags(), fields.pairs("limits", {})
    )


def _vhost(fields: Fields) -> VhostDefinition:
    fields.skip("tracing", "limits", "cluster_state")
    metadata = fields.inner("metadata")
    queue_type = fields.text("default_queue_type", metadata.text("default_queue_type", ""))
    return VhostDefinition(
        fields.text("name"),
        fields.text("description", metadata.text("description", "")),
        fields.tags() or metadata.tags(),
        "classic" if queue_type in {"", "undefined"} else queue_type,
        protected_from_deletion=metadata.flag("protected_from_deletion", default=False),
        creates_queues=metadata.flag("creates_queues", default=False),
    )


def _permission(fields: Fields) -> PermissionDefinition:
    return PermissionDefinition(
        fields.vhost(),
        fields.text("user"),
        fields.text("configure"),
        fields.text("write"),
        fields.text("read"),
    )


def _topic_permission(fields: Fields) -> TopicPermissionDefinition:
    return TopicPermissionDefinition(
        fields.vhost(),
        fields.text("user"),
        fields.text("exchange"),
        fields.text("write"),
        fields.text("read"),
    )


def _parameter(fields: Fields) -> ParameterDefinition | PolicyDefinition | VhostLimits:
    vhost, component = fields.vhost(), fields.text("component")
    name = fields.text("name")
    if component == VHOST_LIMITS:
        return VhostLimits(vhost, fields.pairs("value", {}))
    if component == OPERATOR_POLICY:
        return _of_policy(fields.inner("value"), vhost, name, operator=True)
    return ParameterDefinition(vhost, component, name, fields.json("value"))


def _global_parameter(fields: Fields) -> GlobalParameterDefinition:
    return GlobalParameterDefinition(fields.text("name"), fields.json("value"))


def _policy(fields: Fields) -> PolicyDefinition:
    return _of_policy(fields, fields.vhost(), fields.text("name"), operator=False)


def _of_policy(fields: Fields, vhost: str, name: str, *, operator: bool) -> PolicyDefinition:
    return PolicyDefinition(
        vhost,
        name,
        fields.text("pattern"),
        fields.pairs("definition"),
        fields.integer("priority", 0),
        fields.text("apply-to", "all"),
        operator,
    )


def _exchange(fields: Fields) -> ExchangeDefinition | None:
    """Parse an exchange; None for a predeclared one."""
    exchange = ExchangeDefinition(
        fields.vhost(),
        fields.text("name"),
        fields.text("type"),
        fields.flag("durable", default=True),
        fields.flag("auto_delete", default=False),
        fields.flag("internal", default=False),
        fields.table("arguments"),
    )
    return None if not exchange.name or exchange.name.startswith(RESERVED_PREFIX) else exchange


def _queue(fields: Fields) -> QueueDefinition | None:
    """Parse a queue; None for a server-named one, which its connection declares again."""
    arguments = fields.table("arguments")
    queue_type = fields.text("type", "classic")
    if queue_type != "classic":
        arguments.setdefault("x-queue-type", queue_type)
    queue = QueueDefinition(
        fields.vhost(),
        fields.text("name"),
        durable=fields.flag("durable", default=True),
        auto_delete=fields.flag("auto_delete", default=False),
        arguments=arguments,
        aliases=fields.names("aliases"),
        paused=_paused(fields),
        created_ms=max(fields.integer("created_at", 0), 0),
        created_by=fields.text("created_by", ""),
        layout=_layout(fields),
    )
    return None if queue.name.startswith(RESERVED_PREFIX) else queue


def _layout(fields: Fields) -> PartitionLayout | None:
    """Parse the number of partitions of a queue that has another than its arguments say."""
    count = fields.integer("partitions", 0)
    if not 0 <= count <= PARTITIONS_MAX:
        raise fields.error("partitions", f"1 to {PARTITIONS_MAX} were expected")
    return PartitionLayout(tuple(range(count)), (), count) if count else None


def _paused(fields: Fields) -> Paused:
    try:
        return Paused(fields.text("paused", ""))
    except ValueError:
        raise fields.error("paused", "'deliveries' or 'all' was expected") from None


def _binding(fields: Fields) -> BindingDefinition | None:
    """Parse a binding; None for an implicit one of the default exchange."""
    fields.skip("properties_key")
    kind = fields.text("destination_type", "queue")
    if kind not in {"queue", "exchange"}:
        raise fields.error("destination_type", "'queue' or 'exchange' was expected")
    binding = BindingDefinition(
        fields.vhost(),
        fields.text("source"),
        fields.text("destination"),
        kind,
        fields.text("routing_key", ""),
        fields.table("arguments"),
    )
    return binding if binding.source else None


Reader: TypeAlias = "Callable[[Fields], Definition | VhostLimits | None]"

# In the order of documents, which is also that of creation.
SECTIONS: Final[dict[str, Reader]] = {
    "users": _user,
    "vhosts": _vhost,
    "permissions": _permission,
    "topic_permissions": _topic_permission,
    "parameters": _parameter,
    "global_parameters": _global_parameter,
    "policies": _policy,
    "queues": _queue,
    "exchanges": _exchange,
    "bindings": _binding,
}
VHOST_SECTIONS: Final = ("parameters", "policies", "queues", "exchanges", "bindings")


def document(
    definitions: Definitions, product: str, version: str, vhost: VhostDefinition | None = None
) -> dict[str, Json]:
    """Return the document of all definitions, or of the contents of `vhost`."""
    about = {
        "rabbit_version": version,
        "rabbitmq_version": version,
        "product_name": product,
        "product_version": version,
    }
    sections = {
        "users": [user_row(user) for user in definitions.users],
        "vhosts": [_vhost_row(one) for one in definitions.vhosts],
        "permissions": [_row(one) for one in definitions.permissions],
        "topic_permissions": [_row(one) for one in definitions.topic_permissions],
        "parameters": parameter_rows(
            definitions.vhosts,
            [policy for policy in definitions.policies if policy.operator],
            definitions.parameters,
        ),
        "global_parameters": [_row(one) for one in definitions.global_parameters],
        "policies": [policy_row(one) for one in definitions.policies if not one.operator],
        "queues": [_queue_row(queue) for queue in definitions.queues],
        "exchanges": [_row(exchange) for exchange in definitions.exchanges],
        # Sorted by all fields: bindings may differ in their arguments only, which have no order.
        "bindings": sorted_in_runs(map(_row, definitions.bindings), json.dumps),
    }
    if vhost is None:
        return {**about, "rabbitmq_definition_format": "cluster", **sections}
    return {
        **about,
        "rabbitmq_definition_format": "single_virtual_host",
        "original_vhost_name": vhost.name,
        "metadata": _metadata(vhost),
        **{key: _without_vhost(vhost.name, sections[key]) for key in VHOST_SECTIONS},
    }


def _without_vhost(vhost: str, rows: list[dict[str, Json]]) -> list[dict[str, Json]]:
    return [row for row in rows if row.pop("vhost") == vhost]


def _row(definition: Definition) -> dict[str, Json]:
    """Return a definition whose fields have the document's names."""
    values = {name: getattr(definition, name) for name in definition.__dataclass_fields__}
    if "arguments" in values:
        values["arguments"] = plain(values["arguments"])
    return values


def parameter_rows(
    vhosts: Iterable[VhostDefinition],
    operator_policies: Iterable[PolicyDefinition],
    parameters: Iterable[ParameterDefinition],
) -> list[dict[str, Json]]:
    """Return RabbitMQ's parameters of virtual hosts, including limits and operator policies."""
    return [
        *(_limits_row(one) for one in vhosts if one.limits),
        *map(_operator_row, operator_policies),
        *map(_row, parameters),
    ]


def user_row(user: UserDefinition) -> dict[str, Json]:
    """Return a user, with the password hash, so that definitions can be copied between brokers."""
    algorithm, password_hash = export_hash(user.password_hash)
    return {
        "name": user.name,
        "password_hash": password_hash,
        "hashing_algorithm": algorithm,
        "tags": list(user.tags),
        "limits": user.limits,
    }


def _vhost_row(vhost: VhostDefinition) -> dict[str, Json]:
    return {
        "name": vhost.name,
        "description": vhost.description,
        "tags": list(vhost.tags),
        "default_queue_type": vhost.default_queue_type,
        "metadata": _metadata(vhost),
    }


def _metadata(vhost: VhostDefinition) -> dict[str, Json]:
    return {
        "description": vhost.description,
        "tags": list(vhost.tags),
        "default_queue_type": vhost.default_queue_type,
        "protected_from_deletion": vhost.protected_from_deletion,
        **({"creates_queues": True} if vhost.creates_queues else {}),
    }


def _limits_row(vhost: VhostDefinition) -> dict[str, Json]:
    return {
        "vhost": vhost.name,
        "component": VHOST_LIMITS,
        "name": "limits",
        "value": vhost.limits,
    }


def policy_row(policy: PolicyDefinition) -> dict[str, Json]:
    """Return a policy."""
    return {"vhost": policy.vhost, "name": policy.name, **_policy_value(policy)}


def _operator_row(policy: PolicyDefinition) -> dict[str, Json]:
    return {
        "vhost": policy.vhost,
        "component": OPERATOR_POLICY,
        "name": policy.name,
        "value": _policy_value(policy),
    }


def _policy_value(policy: PolicyDefinition) -> dict[str, Json]:
    return {
        "pattern": policy.pattern,
        "apply-to": policy.apply_to,
        "definition": policy.definition,
        "priority": policy.priority,
    }


def _queue_row(queue: QueueDefinition) -> dict[str, Json]:
    own: dict[str, Json] = {}  # keys unknown to RabbitMQ, if set
    if queue.aliases:
        own["aliases"] = list(queue.aliases)
    if queue.paused:
        own["paused"] = str(queue.paused)
    if queue.created_ms:
        own["created_at"] = queue.created_ms
    if queue.created_by:
        own["created_by"] = queue.created_by
    if queue.layout is not None:
        own["partitions"] = len(queue.layout.active)
    return {
        "name": queue.name,
        "vhost": queue.vhost,
        "type": queue.arguments.get("x-queue-type", "classic"),
        "durable": queue.durable,
        "auto_delete": queue.auto_delete,
        "arguments": plain(queue.arguments),
        **own,
    }
