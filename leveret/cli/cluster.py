"""`leveret cluster …`: the nodes of a cluster, where partitions are, and moves of them."""

from __future__ import annotations

import time
from pathlib import Path  # read when the command is built
from typing import Annotated, Any, Final

import typer

from leveret.cli.completion import queue_names
from leveret.cli.group import JSON, Group
from leveret.cli.output import printable, show_done, show_json, show_rows, show_warnings
from leveret.cli.progress import progress
from leveret.cli.session import Vhost, as_json, ask, fail
from leveret.cli.values import counted
from leveret.errors import LeveretError

__all__ = ["app"]

app = Group("The cluster: its nodes, and on which of them queues are.")

NODES = ["node", "state", "controller", "rack", "version", "incarnation", "replicas", "leaders"]
PARTITIONS = ["vhost", "queue", "partition", "state", "leader", "replicas", "in_sync"]
CRITICAL = ["vhost", "queue", "partition", "type", "replicas", "in_sync"]
MOVES = ["vhost", "queue", "partition", "from", "to", "state", "progress"]
PROBLEMS: Final = ("without_leader", "below_min_isr", "under_replicated")
POLL_SECONDS: Final = 0.5
UNCLEAN: Final = (
    "confirmed messages that only other nodes have are lost, and messages that were acknowledged "
    "may be delivered again"
)
DISCONNECTED: Final = (
    "this node has no connection with ZooKeeper: what is shown is the last that it knew, and may "
    "have changed since. Ask another node"
)

NodeId = Annotated[int, typer.Argument(help="Number of the node.", metavar="NODE", min=0)]
Queue = Annotated[str, typer.Argument(help="The queue.", autocompletion=queue_names)]
Partition = Annotated[int | None, typer.Option(help="Only this partition of the queue.", min=0)]
Wait = Annotated[bool, typer.Option("--wait", help="Wait until all moves are done.")]


@app.command("status")
def status(
    in_sync_within: Annotated[
        float | None,
        typer.Option(
            metavar="SECONDS",
            min=0,
            help="Wait until all replicas are in sync; status 1 if they are not within so long.",
        ),
    ] = None,
) -> None:
    """Show the nodes, what is wrong with partitions, and the moves.

    It ends with status 1 while partitions have no leader or take no publishes, or this node has no
    connection with ZooKeeper. Before the next node of a rolling restart is stopped:
    `leveret cluster status --in-sync-within 300`.
    """
    found = ask("cluster.status") if in_sync_within is None else _settled(in_sync_within)
    moves = ask("cluster.moves")
    problems = ask("cluster.partitions", problems=True, limit=100)
    if as_json():
        show_json({**found, "moves": moves, "problems": problems})
    else:
        _show_status(found)
        if problems:
            typer.echo()
            show_rows([_readable(row) for row in problems], PARTITIONS)
        if moves:
            typer.echo()
            show_rows([_readable({**row, "progress": _progress(row)}) for row in moves], MOVES)
    counts = found["partitions"]
    if not found["coordinator"]["connected"]:
        show_warnings([DISCONNECTED])
        raise typer.Exit(1)
    if counts["without_leader"] or counts["below_min_isr"]:
        raise typer.Exit(1)
    if in_sync_within is not None and not _is_in_sync(found):
        raise typer.Exit(1)


def _is_in_sync(found: dict[str, Any]) -> bool:
    """Whether a node may be stopped without harm, as far as the others are concerned."""
    return found["coordinator"]["connected"] and not any(
        found["partitions"][name] for name in PROBLEMS
    )


def _settled(seconds: float) -> dict[str, Any]:
    """Return the status once all replicas are in sync, or after so many seconds."""
    deadline = time.monotonic() + seconds
    while True:
        found: dict[str, Any] = ask("cluster.status")
        if _is_in_sync(found) or time.monotonic() >= deadline:
            return found
        time.sleep(POLL_SECONDS)


def _show_status(found: dict[str, Any]) -> None:
    coordinator, counts = found["coordinator"], found["partitions"]
    connected = "connected" if coordinator["connected"] else "not connected"
    problem = "" if coordinator["problem"] is None else f" ({coordinator['problem']})"
    lines = {
        "cluster": found["cluster"],
        "ZooKeeper": f"{connected}{problem}, change {coordinator['sequence']}",
        "partitions": f"{counts['all']}: {counts['without_leader']} without leader, "
        f"{counts['below_min_isr']} below min-isr, {counts['under_replicated']} under-replicated",
        "moves": found["moves"],
    }
    for name, value in lines.items():
        typer.echo(printable(f"{name}: {value}"))
    typer.echo()
    show_rows([{**row, "controller": _yes(row["controller"])} for row in found["nodes"]], NODES)


def _yes(value: bool) -> str:
    return "yes" if value else ""


def _readable(row: dict[str, Any]) -> dict[str, Any]:
    """Return a row whose lists of nodes are as they are written in commands."""
    return {
        name: ",".join(map(str, value)) if isinstance(value, list) else value
        for name, value in row.items()
    }


def _progress(move: dict[str, Any]) -> str:
    copied, records = move["copied"], move["records"]
    if not records or copied is None:
        return ""
    return f"{100 * min(copied, records) // records} % of {records}"


@app.command("partitions")
def partitions(
    problems: Annotated[
        bool, typer.Option("--problems", help="Only those that something is wrong with.")
    ] = False,
) -> None:
    """Show who leads each partition, and which nodes have it."""
    rows = ask("cluster.partitions", problems=problems)
    show_rows(rows if as_json() else [_readable(row) for row in rows], PARTITIONS)


@app.command("critical")
def critical() -> None:
    """Show the partitions that would take no publishes, or stop, if this node was stopped.

    It ends with status 1 if there are any. Queues with one replica do not count: they go with
    their node.
    """
    rows = ask("cluster.critical")
    if rows or as_json():
        show_rows(rows if as_json() else [_readable(row) for row in rows], CRITICAL)
    else:
        show_done("this node can be stopped: no partition hangs on it")
    if rows:
        raise typer.Exit(1)


@app.command("add")
def add(node: NodeId, wait: Wait = False) -> None:
    """Give a node that has joined its share of the replicas.

    Start it with `leveret serve --cluster` first: `leveret cluster add 4 --wait`.
    """
    moving = ask("cluster.add", number=node)
    _begun(f"node {node} gets its share: {_partitions(moving)}", wait)


@app.command("drain")
def drain(node: NodeId, wait: Wait = False) -> None:
    """Move all replicas of a node to others, and let it lead nothing.

    For instance before it is removed: `leveret cluster drain 3 --wait`. Without another node for a
    replica it stays there.
    """
    told = ask("cluster.drain", number=node)
    if told["staying"]:
        show_warnings(
            [f"no other node can take {counted(told['staying'], 'replica')}, so they stay there"]
        )
    _begun(f"node {node} is drained: {_partitions(told['moving'])}", wait)


@app.command("undrain")
def undrain(node: NodeId) -> None:
    """Let a node have replicas again; `leveret cluster add NODE` gives it some."""
    ask("cluster.undrain", number=node)
    show_done(f"node {node} may have replicas again")


@app.command("remove")
def remove(
    node: NodeId,
    force: Annotated[
        bool, typer.Option("--force", help="Give up the replicas that are still on it.")
    ] = False,
) -> None:
    """Forget a node for good, once it is drained and stopped.

    Its number may be given to another data directory then.
    """
    given_up = ask("cluster.remove", number=node, force=force)
    lost = f"; {counted(given_up, 'replica')} on it were given up" if given_up else ""
    show_done(f"node {node} was removed{lost}")


@app.command("rebalance")
def rebalance(wait: Wait = False) -> None:
    """Give all nodes as many replicas, and let them lead as many partitions."""
    _begun(f"the cluster is balanced: {_partitions(ask('cluster.rebalance'))}", wait)


@app.command("move")
def move(
    queue: Queue,
    to: Annotated[
        str | None, typer.Option(metavar="NODE,NODE", help="Its nodes; the first one leads.")
    ] = None,
    cancel: Annotated[
        bool, typer.Option("--cancel", help="End its moves, and keep the nodes that it had.")
    ] = False,
    partition: Partition = None,
    wait: Wait = False,
    vhost: Vhost = "/",
) -> None:
    """Move a queue to other nodes: `leveret cluster move orders --to 2,3,4`.

    Replicas are added before others are removed.
    """
    if cancel == (to is not None):
        raise typer.BadParameter("give either --to or --cancel", param_hint="--to")
    if to is None:
        ended = ask("cluster.cancel_moves", vhost=vhost, name=queue, partition=partition)
        show_done(f"{counted(ended, 'move')} ended")
        return
    moving = ask("cluster.move", vhost=vhost, name=queue, partition=partition, nodes=_numbers(to))
    _begun(f"queue '{queue}' moves: {_partitions(moving)}", wait)


@app.command("elect")
def elect(
    queue: Queue,
    node: Annotated[int | None, typer.Option(help="The node that shall lead.", min=0)] = None,
    unclean: Annotated[
        bool,
        typer.Option("--unclean", help=f"Let a replica lead that is not in sync: {UNCLEAN}."),
    ] = False,
    partition: Partition = None,
    vhost: Vhost = "/",
) -> None:
    """Let a node lead a queue, or the first of its nodes: `leveret cluster elect orders --node 2`.

    It is the first of its nodes from then on, which leads whenever it can; without `--node` the
    present first one leads. Only a replica in sync is elected. Where none will come back,
    `--unclean` elects the replica that has the most, or that of --node.
    """
    rows = ask(
        "cluster.elect", vhost=vhost, name=queue, partition=partition, number=node, unclean=unclean
    )
    if unclean:
        show_warnings([f"that was an unclean election: {UNCLEAN}"])
    show_rows(rows, ["partition", "leader"])


def _numbers(text: str) -> list[int]:
    try:
        return [int(each) for each in text.split(",")]
    except ValueError:
        raise typer.BadParameter(f"{text!r} is no list of nodes", param_hint="--to") from None


def _partitions(count: int) -> str:
    return f"{counted(count, 'partition')} {'moves' if count == 1 else 'move'}"


def _begun(sentence: str, wait: bool) -> None:
    """Report moves that have begun, and wait for them if that is wanted."""
    if wait:
        _wait()
    show_done(sentence)


def _wait() -> None:
    moves = len(ask("cluster.moves"))
    with progress("moving") as bar:
        bar.total(moves)
        while left := ask("cluster.moves"):
            if all(row["state"] == "stuck" for row in left):
                fail(f"{counted(len(left), 'move')} cannot go on: their nodes are down")
            bar.reach(moves - len(left))
            time.sleep(POLL_SECONDS)


@app.command("join", common=JSON)
def join(
    data_dir: Annotated[
        Path | None, typer.Option(help="Data directory of the node.  [default: var]")
    ] = None,
    cluster: Annotated[
        str | None,
        typer.Option(
            metavar="ZK1:2181,ZK2:2181/PATH",
            help="ZooKeeper's addresses and the path of the cluster, which is new.",
        ),
    ] = None,
    node_id: Annotated[int | None, typer.Option(help="Number of the node.")] = None,
    advertise: Annotated[
        str | None,
        typer.Option(metavar="HOST[:PORT]", help="Where other nodes will reach this one."),
    ] = None,
    cluster_secret_file: Annotated[
        Path | None, typer.Option(help="File with the secret that all nodes of the cluster share.")
    ] = None,
    config: Annotated[
        Path | None,
        typer.Option(envvar="LEVERET_CONFIG", help="TOML file with these and all other settings."),
    ] = None,
) -> None:
    """Make a node by itself, which is stopped, the first node of a new cluster.

    All its definitions and messages are those of the cluster then. Start it with the same settings
    afterwards: `leveret serve --cluster`; other nodes begin with empty data directories.
    """
    from leveret.config import load  # as of `leveret serve`: the whole broker hangs on it

    settings = {
        "data_dir": data_dir,
        "cluster": cluster,
        "node_id": node_id,
        "advertise": advertise,
        "cluster_secret_file": cluster_secret_file,
    }
    try:
        configuration = load(config, settings).configuration
        if not configuration.cluster:
            fail("name the cluster: --cluster ZK1:2181,ZK2:2181/PATH")
        from leveret.node.joining import join_cluster

        joined = join_cluster(configuration)
    except LeveretError as error:
        fail(str(error))
    if as_json():
        show_json(joined._asdict())
    else:
        show_done(
            f"node {configuration.node_id} is the first of cluster {joined.cluster}, with "
            f"{counted(joined.queues, 'queue')}, {counted(joined.users, 'user')} and "
            f"{counted(joined.vhosts, 'virtual host')}: start it with these settings"
        )
