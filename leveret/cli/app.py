"""The command `leveret`: its groups, and what belongs to none of them."""

from __future__ import annotations

from typing import Annotated

import typer

from leveret import __version__
from leveret.cli import (
    alerts,
    audit,
    bindings,
    certs,
    config,
    connections,
    dedup,
    definitions,
    dlq,
    doctor,
    dump,
    encryption,
    exchanges,
    limits,
    messages,
    node,
    parameters,
    perf,
    permissions,
    policies,
    prepared,
    producers,
    queues,
    retry,
    schedule,
    serve,
    top,
    topic_permissions,
    trace,
    usage,
    users,
    vhosts,
)

__all__ = ["app"]

app = typer.Typer(
    name="leveret",
    help="An AMQP 0-9-1 broker whose queues are logs.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,  # logs want plain tracebacks without local variables
)
app.command("serve")(serve.serve)
app.command("perf")(perf.perf)
app.add_typer(config.app, name="config")
app.command("certs")(certs.certs)
app.add_typer(users.app, name="user")
app.add_typer(vhosts.app, name="vhost")
app.command("hash-password")(users.hash_password)
app.add_typer(permissions.app, name="permission")
app.add_typer(topic_permissions.app, name="topic-permission")
app.add_typer(policies.policies, name="policy")
app.add_typer(policies.operator_policies, name="operator-policy")
app.add_typer(limits.app, name="limits")
app.add_typer(parameters.app, name="parameter")
app.add_typer(parameters.global_app, name="global-parameter")
app.add_typer(definitions.app, name="definitions")
app.add_typer(queues.app, name="queue")
app.add_typer(messages.app, name="message")
app.add_typer(exchanges.app, name="exchange")
app.add_typer(bindings.app, name="binding")
app.add_typer(connections.app, name="connection")
app.add_typer(connections.channels, name="channel")
app.add_typer(connections.consumers, name="consumer")
app.add_typer(node.app, name="node")
app.command("alarms")(node.alarms)
app.command("top")(top.top)
app.command("doctor")(doctor.doctor)
app.command("dump")(dump.dump)
app.add_typer(trace.app, name="trace")
app.add_typer(dlq.app, name="dlq")
app.add_typer(retry.app, name="retry")
app.add_typer(encryption.app, name="encryption")
app.command("usage")(usage.usage)
app.add_typer(alerts.app, name="alert")
app.command("audit")(audit.audit)
app.add_typer(schedule.app, name="schedule")
app.add_typer(dedup.app, name="dedup")
app.add_typer(producers.app, name="producers")
app.add_typer(prepared.app, name="prepared")


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"leveret {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[  # the callback acts
        bool,
        typer.Option("--version", callback=_print_version, is_eager=True, help="Show the version."),
    ] = False,
) -> None:
    pass
