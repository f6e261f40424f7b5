"""Operations on limits, topic permissions, policies and parameters.

See `performing`, which performs them.
"""

from __future__ import annotations

import logging
from dataclasses import asdict
from typing import TYPE_CHECKING, Final

from leveret.core.definitions.administration import AdministrationError
from leveret.core.definitions.document import policy_row
from leveret.core.definitions.effects import without_effect
from leveret.mgmt_ui.operations.context import policies_followed
from leveret.ports.definitions import (
    GlobalParameterDefinition,
    ParameterDefinition,
    PolicyDefinition,
    TopicPermissionDefinition,
)
from leveret.ports.log_text import quoted

if TYPE_CHECKING:
    from leveret.core.definitions.administration import Administration
    from leveret.mgmt_ui.operations.context import AdminContext, Operations, Parameters
    from leveret.ports.definitions import Definition, Limits

__all__ = ["RULES"]

logger = logging.getLogger(__name__)

Rows = list[dict[str, object]]


async def _limits_set(node: AdminContext, parameters: Parameters) -> None:
    administration, kind, name = node.administration, parameters["kind"], parameters["name"]
    limits = {**_limits(administration, kind, name), **parameters["limits"]}
    _put_limits(administration, kind, name, limits)


async def _limits_clear(node: AdminContext, parameters: Parameters) -> None:
    administration, kind, name = node.administration, parameters["kind"], parameters["name"]
    limits = _limits(administration, kind, name)
    cleared = parameters["limit"]
    limits = {key: value for key, value in limits.items() if cleared not in {None, key}}
    _put_limits(administration, kind, name, limits)


def _limits(administration: Administration, kind: str, name: str) -> Limits:
    match kind:
        case "vhost":
            return administration.vhost(name).limits
        case "user":
            return administration.user(name).limits
    raise AdministrationError("invalid", f"limits are of a vhost or a user, not of a {kind}")


def _put_limits(administration: Administration, kind: str, name: str, limits: Limits) -> None:
    if kind == "vhost":
        administration.set_vhost_limits(name, limits)
    else:
        administration.set_user_limits(name, limits)


async def _limits_list(node: AdminContext, _: Parameters) -> Rows:
    return [
        {"kind": kind, "name": held.name, "limit": limit, "value": value}
        for kind, all_held in (
            ("user", node.administration.users()),
            ("vhost", node.administration.vhosts()),
        )
        for held in all_held
        for limit, value in held.limits.items()
    ]


async def _topic_permission_set(node: AdminContext, parameters: Parameters) -> None:
    node.administration.set_topic_permission(TopicPermissionDefinition(**parameters))


async def _topic_permission_clear(node: AdminContext, parameters: Parameters) -> None:
    node.administration.clear_topic_permissions(
        parameters["user"], parameters["vhost"], parameters["exchange"]
    )


async def _topic_permission_list(node: AdminContext, parameters: Parameters) -> Rows:
    held = node.administration.topic_permissions(user=parameters["user"], vhost=parameters["vhost"])
    return [asdict(definition) for definition in held]


def _warned(node: AdminContext, thing: str, definition: Definition) -> dict[str, object]:
    """Return and log sentences about settings of a definition that have no effect."""
    warnings = without_effect(definition)
    if node.runtime is not None:  # without a node there is no log
        for warning in warnings:
            logger.warning("%s was set: %s", thing, warning)
    return {"warnings": warnings}


async def _policy_set(node: AdminContext, parameters: Parameters) -> dict[str, object]:
    policy = PolicyDefinition(**parameters)
    node.administration.set_policy(policy)
    await policies_followed(node)
    kind = "operator policy" if policy.operator else "policy"
    return _warned(node, f"{kind} {quoted(policy.name)} in vhost {quoted(policy.vhost)}", policy)


async def _policy_clear(node: AdminContext, parameters: Parameters) -> None:
    node.administration.clear_policy(
        parameters["vhost"], parameters["name"], operator=parameters["operator"]
    )
    await policies_followed(node)


async def _policy_list(node: AdminContext, parameters: Parameters) -> Rows:
    held = node.administration.policies.select(parameters["vhost"], operator=parameters["operator"])
    return [policy_row(policy) for policy in held]


async def _parameter_set(node: AdminContext, parameters: Parameters) -> dict[str, object]:
    parameter = ParameterDefinition(**parameters)
    node.administration.set_parameter(parameter)
    thing = f"parameter {quoted(parameter.name)} in vhost {quoted(parameter.vhost)}"
    return _warned(node, thing, parameter)


async def _parameter_clear(node: AdminContext, parameters: Parameters) -> None:
    node.administration.clear_parameter(
        parameters["vhost"], parameters["component"], parameters["name"]
    )


async def _parameter_list(node: AdminContext, parameters: Parameters) -> Rows:
    held = node.administration.parameters.select(
        vhost=parameters["vhost"], component=parameters["component"]
    )
    return [asdict(definition) for definition in held]


async def _global_parameter_set(node: AdminContext, parameters: Parameters) -> dict[str, object]:
    parameter = GlobalParameterDefinition(**parameters)
    node.administration.set_global_parameter(parameter)
    return _warned(node, f"global parameter {quoted(parameter.name)}", parameter)


async def _global_parameter_clear(node: AdminContext, parameters: Parameters) -> None:
    node.administration.clear_global_parameter(parameters["name"])


async def _global_parameter_list(node: AdminContext, _: Parameters) -> Rows:
    return [asdict(definition) for definition in node.administration.parameters.all_global()]


_TOPIC: Final = {"vhost": str, "user": str, "exchange": str, "write": str, "read": str}
_POLICY: Final = {
    "vhost": str,
    "name": str,
    "pattern": str,
    "definition": dict,
    "priority": int,
    "apply_to": str,
    "operator": bool,
}
_PARAMETER: Final = {"vhost": str, "component": str, "name": str}
RULES: Final[Operations] = {
    "limits.set": (_limits_set, {"kind": str, "name": str, "limits": dict}),
    "limits.clear": (_limits_clear, {"kind": str, "name": str, "limit": None}),
    "limits.list": (_limits_list, {}),
    "topic_permission.set": (_topic_permission_set, _TOPIC),
    "topic_permission.clear": (
        _topic_permission_clear,
        {"user": str, "vhost": str, "exchange": None},
    ),
    "topic_permission.list": (_topic_permission_list, {"user": None, "vhost": None}),
    "policy.set": (_policy_set, _POLICY),
    "policy.clear": (_policy_clear, {"vhost": str, "name": str, "operator": bool}),
    "policy.list": (_policy_list, {"vhost": None, "operator": bool}),
    "parameter.set": (_parameter_set, {**_PARAMETER, "value": object}),
    "parameter.clear": (_parameter_clear, _PARAMETER),
    "parameter.list": (_parameter_list, {"vhost": None, "component": None}),
    "global_parameter.set": (_global_parameter_set, {"name": str, "value": object}),
    "global_parameter.clear": (_global_parameter_clear, {"name": str}),
    "global_parameter.list": (_global_parameter_list, {}),
}
