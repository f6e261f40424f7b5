"""`leveret policy …` and `leveret operator-policy …`: policies for queues and exchanges."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from leveret.cli.group import Group
from leveret.cli.listing import Listing, show_list, whole
from leveret.cli.options import with_options_of
from leveret.cli.output import show_done, show_warnings
from leveret.cli.session import DATA_DIR, DataDir, InVhost, Json, Vhost, ask, read_json

__all__ = ["operator_policies", "policies"]

Name = Annotated[str, typer.Argument(help="The policy's name.")]
Pattern = Annotated[str, typer.Argument(help="Regular expression, searched in names.")]
Definition = Annotated[str, typer.Argument(help='JSON, such as {"max-length": 1000}.')]
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

    @app.command("set")
    def set_(
        name: Name,
        pattern: Pattern,
        definition: Definition,
        priority: Priority = 0,
        apply_to: ApplyTo = "all",
        vhost: Vhost = "/",
        data_dir: DataDir = DATA_DIR,
        json: Json = False,
    ) -> None:
        """Add or replace a policy; it applies at once.

        Settings of RabbitMQ that have no effect here are accepted, with a warning.
        """
        answer = ask(
            data_dir,
            "policy.set",
            vhost=vhost,
            name=name,
            pattern=pattern,
            definition=read_json(definition),
            priority=priority,
            apply_to=apply_to,
            operator=operator,
        )
        show_warnings(answer["warnings"])
        show_done(f"{kind} '{name}' in vhost '{vhost}' was set", as_json=json)

    @app.command("clear")
    @app.command("delete", hidden=True)
    def clear(
        name: Name, vhost: Vhost = "/", data_dir: DataDir = DATA_DIR, json: Json = False
    ) -> None:
        """Delete a policy; its settings end at once."""
        ask(data_dir, "policy.clear", vhost=vhost, name=name, operator=operator)
        show_done(f"{kind} '{name}' in vhost '{vhost}' was cleared", as_json=json)

    @app.command("list")
    @with_options_of(Listing)
    def list_(
        *, vhost: InVhost = None, data_dir: DataDir = DATA_DIR, json: Json = False, **options: Any
    ) -> None:
        """Show policies, in the order in which they are tried."""
        rows = ask(data_dir, "policy.list", vhost=vhost, operator=operator)
        show_list(whole(rows), COLUMNS, options, as_json=json)

    return app


policies = _commands(
    "policy", "Settings for queues and exchanges whose names fit a pattern.", operator=False
)
operator_policies = _commands(
    "operator policy",
    "Operator policies: bounds on what other policies and clients set.",
    operator=True,
)
