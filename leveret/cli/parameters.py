"""`leveret parameter …` and `leveret global-parameter …`: runtime parameters."""

from __future__ import annotations

from typing import Annotated

import typer

from leveret.cli.group import Group
from leveret.cli.session import InVhost, Vhost, read_json
from leveret.cli.values import Sent

__all__ = ["app", "global_app"]

app = Group("Settings of a virtual host's components, such as alert rules, by name.")
global_app = Group("Settings of the whole node, such as its cluster_name.")

Component = Annotated[str, typer.Argument(help="The component, such as shovel.")]
Name = Annotated[str, typer.Argument(help="The parameter's name.")]
Value = Annotated[str, typer.Argument(help="Its value, in JSON."), Sent(read_json)]
DELETE = ("delete",)


@app.change("set", "parameter.set", "parameter '{name}' of {component} was set")
def set_(component: Component, name: Name, value: Value, vhost: Vhost = "/") -> None:
    """Add or replace a parameter.

    Those of components that do not run here, federation for example, are kept with a warning.
    """


@app.change(
    "clear", "parameter.clear", "parameter '{name}' of {component} was cleared", also=DELETE
)
def clear(component: Component, name: Name, vhost: Vhost = "/") -> None:
    """Delete a parameter."""


@app.list("parameter.list", ["vhost", "component", "name", "value"])
def list_(
    component: Annotated[
        str | None, typer.Option("--component", help="Only those of this component.")
    ] = None,
    vhost: InVhost = None,
) -> None:
    """Show parameters."""


@global_app.change("set", "global_parameter.set", "global parameter '{name}' was set")
def set_global(name: Name, value: Value) -> None:
    """Add or replace a parameter."""


@global_app.change(
    "clear", "global_parameter.clear", "global parameter '{name}' was cleared", also=DELETE
)
def clear_global(name: Name) -> None:
    """Delete a parameter."""


@global_app.list("global_parameter.list", ["name", "value"])
def list_global() -> None:
    """Show parameters."""
