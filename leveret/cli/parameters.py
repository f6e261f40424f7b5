"""`leveret parameter …` and `leveret global-parameter …`: runtime parameters."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from leveret.cli.group import Group
from leveret.cli.listing import Listing, show_list, whole
from leveret.cli.options import with_options_of
from leveret.cli.output import show_done, show_warnings
from leveret.cli.session import DATA_DIR, DataDir, InVhost, Json, Vhost, ask, read_json

__all__ = ["app", "global_app"]

app = Group("Settings of a virtual host's components, such as alert rules, by name.")
global_app = Group("Settings of the whole node, such as its cluster_name.")

Component = Annotated[str, typer.Argument(help="The component, such as alert.")]
Name = Annotated[str, typer.Argument(help="The parameter's name.")]
Value = Annotated[str, typer.Argument(help="Its value, in JSON.")]


@app.command("set")
def set_(
    component: Component,
    name: Name,
    value: Value,
    vhost: Vhost = "/",
    data_dir: DataDir = DATA_DIR,
    json: Json = False,
) -> None:
    """Add or replace a parameter.

    Those of components that do not run here, shovels for example, are kept with a warning.
    """
    answer = ask(
        data_dir,
        "parameter.set",
        vhost=vhost,
        component=component,
        name=name,
        value=read_json(value),
    )
    show_warnings(answer["warnings"])
    show_done(f"parameter '{name}' of {component} was set", as_json=json)


@app.command("clear")
@app.command("delete", hidden=True)
def clear(
    component: Component,
    name: Name,
    vhost: Vhost = "/",
    data_dir: DataDir = DATA_DIR,
    json: Json = False,
) -> None:
    """Delete a parameter."""
    ask(data_dir, "parameter.clear", vhost=vhost, component=component, name=name)
    show_done(f"parameter '{name}' of {component} was cleared", as_json=json)


@app.command("list")
@with_options_of(Listing)
def list_(
    *,
    component: Annotated[
        str | None, typer.Option("--component", help="Only those of this component.")
    ] = None,
    vhost: InVhost = None,
    data_dir: DataDir = DATA_DIR,
    json: Json = False,
    **options: Any,
) -> None:
    """Show parameters."""
    rows = ask(data_dir, "parameter.list", vhost=vhost, component=component)
    show_list(whole(rows), ["vhost", "component", "name", "value"], options, as_json=json)


@global_app.command("set")
def set_global(name: Name, value: Value, data_dir: DataDir = DATA_DIR, json: Json = False) -> None:
    """Add or replace a parameter."""
    answer = ask(data_dir, "global_parameter.set", name=name, value=read_json(value))
    show_warnings(answer["warnings"])
    show_done(f"global parameter '{name}' was set", as_json=json)


@global_app.command("clear")
@global_app.command("delete", hidden=True)
def clear_global(name: Name, data_dir: DataDir = DATA_DIR, json: Json = False) -> None:
    """Delete a parameter."""
    ask(data_dir, "global_parameter.clear", name=name)
    show_done(f"global parameter '{name}' was cleared", as_json=json)


@global_app.command("list")
@with_options_of(Listing)
def list_global(*, data_dir: DataDir = DATA_DIR, json: Json = False, **options: Any) -> None:
    """Show parameters."""
    show_list(
        whole(ask(data_dir, "global_parameter.list")), ["name", "value"], options, as_json=json
    )
