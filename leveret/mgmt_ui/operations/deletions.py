"""What is refused by HTTP and on the pages of a node whose setting `http_delete` is off.

That is to delete queues, and what would have them deleted later: with their virtual host, or by a
time that nobody uses them. What a policy or an argument says already goes on to hold.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from leveret.core.definitions.document import OPERATOR_POLICY

if TYPE_CHECKING:
    from leveret.mgmt_ui.operations.context import Parameters

__all__ = ["refused_deletion"]


def refused_deletion(operation: str, parameters: Parameters) -> str | None:
    """Why an operation is not for HTTP there; None for one that deletes no queue."""
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
    """Whether a document of definitions, which nobody has checked, has policies that delete."""
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
    """Whether an object has a key; some of RabbitMQ's tools write a list of pairs instead."""
    if isinstance(definition, list):
        return any(isinstance(pair, list) and pair[:1] == [key] for pair in definition)
    return isinstance(definition, dict) and key in definition
