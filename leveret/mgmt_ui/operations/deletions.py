"""Deletions that are refused by HTTP and web UI where the setting `http_delete` is off.

These are deletions of queues, and changes that cause them later: of the virtual host, or by an
expiry of unused queues. What a policy or an argument says already stays in effect.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from leveret.core.definitions.document import OPERATOR_POLICY

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["refused_deletion"]


def refused_deletion(operation: str, parameters: Mapping[str, Any]) -> str | None:
    """Return why an operation is refused there; None if it deletes no queue."""
    match operation:
        case "queue.delete" | "vhost.delete":
            deletes = True
        case "queue.change":
            deletes = parameters["arguments"].get("x-expires") is not None
        case "policy.set":
            deletes = "expires" in parameters["definition"]
        case "definitions.import":
            deletes = _expires(parameters["document"])
        case _:
            return None
    if not deletes:
        return None
    command = operation.replace(".", " ")
    if operation == "policy.set" and parameters["operator"]:
        command = "operator-policy set"
    return f"queues are not deleted by HTTP on this node: use `leveret {command}`"


def _expires(document: Any) -> bool:
    """Whether an unchecked document of definitions has policies that delete queues."""
    operator_policies = [
        row.get("value")
        for row in _rows(document, "parameters")
        if row.get("component") == OPERATOR_POLICY
    ]
    return any(
        isinstance(policy, dict) and _has(policy.get("definition"), "expires")
        for policy in (*_rows(document, "policies"), *operator_policies)
    )


def _rows(document: Any, section: str) -> list[dict[str, Any]]:
    found = document.get(section) if isinstance(document, dict) else None
    return [row for row in found if isinstance(row, dict)] if isinstance(found, list) else []


def _has(definition: Any, key: str) -> bool:
    """Whether an object has a key; some RabbitMQ tools write a list of pairs instead."""
    if isinstance(definition, list):
        return any(isinstance(pair, list) and pair[:1] == [key] for pair in definition)
    return isinstance(definition, dict) and key in definition
