"""`leveret perf`: a load generator for any AMQP 0-9-1 broker."""

from __future__ import annotations

import json
from contextlib import nullcontext
from typing import TYPE_CHECKING, Annotated, Any

import typer

from leveret.cli.options import with_options_of
from leveret.cli.output import is_for_people
from leveret.cli.session import fail
from leveret.cli.values import show_one
from leveret.errors import LeveretError
from leveret.perf.options import Mode, Options
from leveret.perf.plan import LoadPlan, PlanError

if TYPE_CHECKING:
    from leveret.perf.board import RunPhase
    from leveret.perf.conductor import Moment
    from leveret.perf.result import Result

__all__ = ["perf"]

EXIT_INCOMPLETE = 2


@with_options_of(Options)
def perf(
    *,
    pid: Annotated[
        str,
        typer.Option(
            help="The broker's process, to measure it, or those of a cluster's nodes with commas; "
            "auto: find it by its port."
        ),
    ] = "",
    json_output: Annotated[bool, typer.Option("--json", help="Print the result as JSON.")] = False,
    **options: Any,
) -> None:
    """Publish, consume and measure. Works with any AMQP 0-9-1 broker."""
    # Imported here, so that a broker's start does not wait for it.
    from rich.console import Console

    from leveret.perf.report import rows, table

    watched = is_for_people() and not json_output
    try:
        result = _carry_out(LoadPlan(**options).checked(), pid, quiet=not watched)
    except (LeveretError, OSError) as error:
        fail(str(error))
    if json_output:
        typer.echo(json.dumps(result.as_json(), indent=2))
    elif watched:
        Console().print(table(result))
    else:
        show_one({"seconds": f"{result.seconds:.1f}", **dict(rows(result))})
    if not result.ok:
        raise typer.Exit(EXIT_INCOMPLETE)


def _carry_out(plan: LoadPlan, pid_text: str, *, quiet: bool) -> Result:
    """Run the plan, with a progress line on the terminal unless `quiet`."""
    from rich.live import Live

    from leveret.perf.conductor import Conductor
    from leveret.perf.idle import hold_connections
    from leveret.perf.report import ProgressLine

    pids = _pids(plan, pid_text)
    if plan.mode is Mode.IDLE:
        return hold_connections(plan, pids)
    progress = ProgressLine()
    with nullcontext() if quiet else Live(transient=True, auto_refresh=False) as live:

        def show(moment: Moment, phase: RunPhase) -> None:
            if live is not None:
                live.update(progress.line(moment, phase), refresh=True)

        return Conductor(plan, pids, show).run()


def _pids(plan: LoadPlan, text: str) -> list[int]:
    """Return the processes that `--pid` names. Raises PlanError."""
    from leveret.perf.process import listener_pid

    if text == "auto":
        return [listener_pid(plan.address.port)]
    words = text.split(",") if text else []
    if not all(word.isdigit() for word in words):
        raise PlanError(f"--pid {text}: numbers or auto")
    return [int(word) for word in words]


if __name__ == "__main__":
    typer.run(perf)
