"""Operations on limits, topic permissions, policies and parameters.

See `performing`, which performs them.
"""

from __future__ import annotations

import logging
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from leveret.core.admin.commands import command, query
from leveret.core.admin.rights import MANAGEMENT, POLICYMAKER, Right
from leveret.core.definitions.administration import AdministrationError
from leveret.core.definitions.document import policy_row
from leveret.core.definitions.effects import without_effect
from leveret.features.shovels.parameters import COMPONENT as SHOVEL
from leveret.features.shovels.parameters import without_passwords
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
    from leveret.mgmt_ui.operations.context import AdminContext
    from leveret.ports.definitions import Definition, Limits

logger = logging.getLogger(__name__)

Rows = list[dict[str, Any]]


@command("limits.set")
async def limits_set(node: AdminContext, *, kind: str, name: str, limits: dict[str, Any]) -> None:
    """Set limits of a virtual host or a user; open connections stay."""
    held = _limits(node.administration, kind, name)
    _put_limits(node.administration, kind, name, {**held, **limits})


@command("limits.clear")
async def limits_clear(
    node: AdminContext, *, kind: str, name: str, limit: str | None = None
) -> None:
    """Remove one limit of a virtual host or a user, or all."""
    held = _limits(node.administration, kind, name)
    kept = {key: value for key, value in held.items() if limit not in {None, key}}
    _put_limits(node.administration, kind, name, kept)


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


@query("limits.list")
async def limits_list(node: AdminContext) -> Rows:
    """Return all limits."""
    return [
        {"kind": kind, "name": held.name, "limit": limit, "value": value}
        for kind, all_held in (
            ("user", node.administration.users()),
            ("vhost", node.administration.vhosts()),
        )
        for held in all_held
        for limit, value in held.limits.items()
    ]


@command("topic_permission.set")
async def topic_permission_set(
    node: AdminContext, *, vhost: str, user: str, exchange: str, write: str, read: str
) -> None:
    """Restrict a user to some routing keys; without this, all are allowed."""
    node.administration.set_topic_permission(
        TopicPermissionDefinition(vhost=vhost, user=user, exchange=exchange, write=write, read=read)
    )


@command("topic_permission.clear")
async def topic_permission_clear(
    node: AdminContext, *, user: str, vhost: str, exchange: str | None = None
) -> None:
    """Allow a user all routing keys again."""
    node.administration.clear_topic_permissions(user, vhost, exchange)


@query("topic_permission.list")
async def topic_permission_list(
    node: AdminContext, *, user: str | None = None, vhost: str | None = None
) -> Rows:
    """Return topic permissions."""
    held = node.administration.topic_permissions(user=user, vhost=vhost)
    return [asdict(definition) for definition in held]


def _warned(node: AdminContext, thing: str, definition: Definition) -> dict[str, Any]:
    """Return and log sentences about settings of a definition that have no effect."""
    warnings = without_effect(definition)
    if node.runtime is not None:  # without a node there is no log
        for warning in warnings:
            logger.warning("%s was set: %s", thing, warning)
    return {"warnings": warnings}


@command("policy.set", POLICYMAKER)
async def policy_set(
    node: AdminContext,
    *,
    vhost: str,
    name: str,
    pattern: str,
    definition: dict[str, Any],
    priority: int,
    apply_to: str,
    operator: bool,
) -> dict[str, Any]:
    """Add or replace a policy; it applies at once."""
    policy = PolicyDefinition(vhost, name, pattern, definition, priority, apply_to, operator)
    node.administration.set_policy(policy)
    await policies_followed(node)
    kind = "operator policy" if policy.operator else "policy"
    return _warned(node, f"{kind} {quoted(policy.name)} in vhost {quoted(policy.vhost)}", policy)


@command("policy.clear", POLICYMAKER)
async def policy_clear(node: AdminContext, *, vhost: str, name: str, operator: bool) -> None:
    """Delete a policy; its settings end at once."""
    node.administration.clear_policy(vhost, name, operator=operator)
    await policies_followed(node)


@query("policy.list", MANAGEMENT)
async def policy_list(node: AdminContext, *, vhost: str | None = None, operator: bool) -> Rows:
    """Return policies, in the order in which they are tried."""
    held = node.administration.policies.select(vhost, operator=operator)
    return [policy_row(policy) for policy in held]


@command("parameter.set", POLICYMAKER)
async def parameter_set(
    node: AdminContext, *, vhost: str, component: str, name: str, value: Any = None
) -> dict[str, Any]:
    """Add or replace a parameter."""
    parameter = ParameterDefinition(vhost, component, name, value)
    node.administration.set_parameter(parameter)
    thing = f"parameter {quoted(parameter.name)} in vhost {quoted(parameter.vhost)}"
    return _warned(node, thing, parameter)


@command("parameter.clear", POLICYMAKER)
async def parameter_clear(node: AdminContext, *, vhost: str, component: str, name: str) -> None:
    """Delete a parameter."""
    node.administration.clear_parameter(vhost, component, name)


@query("parameter.list")
async def parameter_list(
    node: AdminContext, *, vhost: str | None = None, component: str | None = None
) -> Rows:
    """Return parameters."""
    held = node.administration.parameters.select(vhost=vhost, component=component)
    return [
        {**asdict(one), "value": without_passwords(one.value)}
        if one.component == SHOVEL
        else asdict(one)
        for one in held
    ]


@command("global_parameter.set", Right("policymaker"))
async def global_parameter_set(
    node: AdminContext, *, name: str, value: Any = None
) -> dict[str, Any]:
    """Add or replace a parameter."""
    parameter = GlobalParameterDefinition(name, value)
    node.administration.set_global_parameter(parameter)
    return _warned(node, f"global parameter {quoted(parameter.name)}", parameter)


@command("global_parameter.clear", Right("policymaker"))
async def global_parameter_clear(node: AdminContext, *, name: str) -> None:
    """Delete a parameter."""
    node.administration.clear_global_parameter(name)


@query("global_parameter.list")
async def global_parameter_list(node: AdminContext) -> Rows:
    """Return parameters."""
    return [asdict(definition) for definition in node.administration.parameters.all_global()]
