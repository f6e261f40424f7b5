"""`leveret policy …` and `leveret operator-policy …`: policies for queues and exchanges."""

from __future__ import annotations

from typing import Annotated

import typer

from leveret.cli.group import Group
from leveret.cli.session import InVhost, Vhost, read_json
from leveret.cli.values import Sent

__all__ = ["operator_policies", "policies"]

Name = Annotated[str, typer.Argument(help="The policy's name.")]
Pattern = Annotated[str, typer.Argument(help="Regular expression, searched in names.")]
Definition = Annotated[
    str, typer.Argument(help='JSON, such as {"max-length": 1000}.'), Sent(read_json)
]
Priority = Annotated[
    int, typer.Option("--priority", help="Of all policies that match, the highest applies.")
]
ApplyTo = Annotated[
    str,
    typer.Option(
        "--apply-to",
        help="all, queues, classic_queues, quorum_queues, streams or exchanges.",
    ),
]
COLUMNS = ["vhost", "name", "pattern", "apply-to", "definition", "priority"]


def _commands(kind: str, help_: str, *, operator: bool) -> Group:
    """Return the commands for policies or operator policies."""
    app = Group(help_)
    thing = f"{kind} '{{name}}' in vhost '{{vhost}}'"

    @app.change("set", "policy.set", f"{thing} was set", operator=operator)
    def set_(
        name: Name,
        pattern: Pattern,
        definition: Definition,
        priority: Priority = 0,
        apply_to: ApplyTo = "all",
        vhost: Vhost = "/",
    ) -> None:
        """Add or replace a policy; it applies at once.

        Settings of RabbitMQ that have no effect here are accepted, with a warning.
        """

    @app.change(
        "clear", "policy.clear", f"{thing} was cleared", also=("delete",), operator=operator
    )
    def clear(name: Name, vhost: Vhost = "/") -> None:
        """Delete a policy; its settings end at once."""

    @app.list("policy.list", COLUMNS, fixed={"operator": operator})
    def list_(vhost: InVhost = None) -> None:
        """Show policies, in the order in which they are tried."""

    return app


policies = _commands(
    "policy", "Settings for queues and exchanges whose names fit a pattern.", operator=False
)
operator_policies = _commands(
    "operator policy",
    "Operator policies: bounds on what other policies and clients set.",
    operator=True,
)
