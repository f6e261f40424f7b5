"""`leveret perf`: a load generator for any AMQP 0-9-1 broker."""

from __future__ import annotations

import json
from contextlib import nullcontext
from typing import TYPE_CHECKING, Annotated

import typer

from leveret.cli.load.plan import AckFrames, Mode, Plan, PlanError
from leveret.errors import LeveretError

if TYPE_CHECKING:
    from leveret.cli.load.board import Phase
    from leveret.cli.load.conductor import Moment
    from leveret.cli.load.result import Result

__all__ = ["perf"]

EXIT_INCOMPLETE = 2


def perf(
    uri: Annotated[
        str, typer.Option(help="Broker to load.")
    ] = "amqp://guest:guest@127.0.0.1:5672/",
    mode: Annotated[
        Mode,
        typer.Option(
            help="flow: publish and consume; fill: publish and keep; drain: consume what is there; "
            "idle: hold connections."
        ),
    ] = Mode.FLOW,
    publishers: Annotated[int, typer.Option(min=0, help="Publishers.")] = 1,
    consumers: Annotated[int, typer.Option(min=0, help="Consumers.")] = 1,
    queues: Annotated[int, typer.Option(min=1, help="Queues.")] = 1,
    channels: Annotated[
        int, typer.Option(min=1, help="Publishers (or consumers) that share a connection.")
    ] = 1,
    size: Annotated[int, typer.Option(min=0, help="Body size in bytes.")] = 16,
    rate: Annotated[
        float, typer.Option(min=0, help="Messages a second in all; 0: as fast as possible.")
    ] = 0,
    messages: Annotated[int, typer.Option(min=0, help="Messages in all; 0: no limit.")] = 0,
    duration: Annotated[
        float, typer.Option(min=0, help="Seconds to measure; 10 when neither limit is given.")
    ] = 0,
    warm_up: Annotated[float, typer.Option(min=0, help="Seconds before measuring.")] = 0,
    drain_timeout: Annotated[
        float, typer.Option(min=0, help="Seconds without progress after which to give up.")
    ] = 10,
    confirms: Annotated[
        int, typer.Option(min=0, help="Unconfirmed messages per publisher; 0: no confirm mode.")
    ] = 0,
    ack_every: Annotated[
        int, typer.Option(min=0, help="Acknowledge every n messages; 0: automatically.")
    ] = 0,
    ack_frames: Annotated[
        AckFrames,
        typer.Option(
            help="each: a frame per message; every: one multiple frame per n; "
            "read: one multiple frame per read of the socket that brought n or more."
        ),
    ] = AckFrames.EVERY,
    prefetch: Annotated[int, typer.Option(min=0, help="Prefetch count; 0: unlimited.")] = 0,
    persistent: Annotated[bool, typer.Option(help="Persistent messages.")] = False,
    durable: Annotated[
        bool | None, typer.Option(help="Durable queues; by default when messages are persistent.")
    ] = None,
    queue_type: Annotated[str, typer.Option(help="x-queue-type; empty: send none.")] = "classic",
    queue_argument: Annotated[
        list[str] | None, typer.Option(help="KEY=VALUE; numbers, true and false are recognised.")
    ] = None,
    exchange_type: Annotated[
        str, typer.Option(help="Publish to an exchange of this type; empty: the default one.")
    ] = "",
    bindings: Annotated[
        int, typer.Option(min=0, help="Bindings of that exchange, spread over the queues.")
    ] = 0,
    binding_key: Annotated[
        str, typer.Option(help="Key of each binding; {} is its number.")
    ] = "perf.{}",
    routing_key: Annotated[
        str, typer.Option(help="Key of each message; {} is a binding's number.")
    ] = "perf.{}",
    random_keys: Annotated[
        bool, typer.Option(help="Choose the number at random instead of in turn.")
    ] = False,
    fanout: Annotated[
        int, typer.Option(min=0, help="A fanout exchange bound to so many queues.")
    ] = 0,
    get: Annotated[bool, typer.Option(help="Consume with basic.get, one by one.")] = False,
    verify: Annotated[
        bool, typer.Option(help="Check that every message arrives exactly once.")
    ] = False,
    keep: Annotated[bool, typer.Option(help="Leave queues and exchange behind.")] = False,
    name: Annotated[
        str, typer.Option(help="Name of the exchange and beginning of the queues' names.")
    ] = "leveret-perf",
    connections: Annotated[int, typer.Option(min=1, help="Connections of --mode idle.")] = 100,
    processes: Annotated[
        int, typer.Option(min=1, max=16, help="Processes to spread the work over.")
    ] = 1,
    spin: Annotated[
        bool, typer.Option(help="Never sleep: on a core of its own this takes waking off latency.")
    ] = False,
    pid: Annotated[
        str, typer.Option(help="The broker's process, to measure it; auto: find it by its port.")
    ] = "",
    json_output: Annotated[bool, typer.Option("--json", help="Print the result as JSON.")] = False,
) -> None:
    """Publish, consume and measure. Works with any AMQP 0-9-1 broker."""
    plan = Plan(
        uri=uri,
        mode=mode,
        name=name,
        publishers=publishers,
        consumers=consumers,
        queues=queues,
        channels=channels,
        size=size,
        rate=rate,
        messages=messages,
        duration=duration or _default_duration(mode, messages),
        warm_up=warm_up,
        drain_timeout=drain_timeout,
        confirms=confirms,
        ack_every=ack_every,
        ack_frames=ack_frames,
        prefetch=prefetch,
        persistent=persistent,
        durable=durable,
        queue_type=queue_type,
        queue_arguments=_arguments(queue_argument or []),
        exchange_type=exchange_type,
        bindings=bindings,
        binding_key=binding_key,
        routing_key=routing_key,
        random_keys=random_keys,
        fanout=fanout,
        get=get,
        verify=verify,
        keep=keep,
        connections=connections,
        processes=processes,
        spin=spin,
    )
    # What follows is imported here, so that a broker's start does not wait for it.
    from rich.console import Console

    from leveret.cli.load.report import table

    try:
        result = _carry_out(plan.checked(), pid, quiet=json_output)
    except (LeveretError, OSError) as error:
        Console(stderr=True).print(f"[red]{error}")
        raise typer.Exit(1) from error
    if json_output:
        typer.echo(json.dumps(result.as_json(), indent=2))
    else:
        Console().print(table(result))
    if not result.ok:
        raise typer.Exit(EXIT_INCOMPLETE)


def _carry_out(plan: Plan, pid_text: str, *, quiet: bool) -> Result:
    """Run the plan, with a line of progress on the terminal unless `quiet`."""
    from rich.live import Live

    from leveret.cli.load.conductor import Conductor
    from leveret.cli.load.idle import hold_connections
    from leveret.cli.load.report import Progress

    pid = _pid(plan, pid_text)
    if plan.mode is Mode.IDLE:
        return hold_connections(plan, pid)
    progress = Progress()
    with nullcontext() if quiet else Live(transient=True, auto_refresh=False) as live:

        def show(moment: Moment, phase: Phase) -> None:
            if live is not None:
                live.update(progress.line(moment, phase), refresh=True)

        return Conductor(plan, pid, show).run()


def _default_duration(mode: Mode, messages: int) -> float:
    """Ten seconds for what would otherwise never end."""
    return 0 if messages or mode in (Mode.DRAIN, Mode.FILL) else 10


def _pid(plan: Plan, text: str) -> int | None:
    from leveret.cli.load.process import listener_pid

    if text == "auto":
        return listener_pid(plan.address.port)
    if text and not text.isdigit():
        raise PlanError(f"--pid {text}: a number or auto")
    return int(text) if text else None


def _arguments(pairs: list[str]) -> dict[str, object]:
    """Queue arguments from KEY=VALUE; what is JSON (numbers, booleans) becomes what it says."""
    arguments: dict[str, object] = {}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        if not equals:
            raise typer.BadParameter(f"{pair} is not KEY=VALUE")
        try:
            arguments[key] = json.loads(value)
        except ValueError:
            arguments[key] = value
    return arguments


if __name__ == "__main__":
    typer.run(perf)
