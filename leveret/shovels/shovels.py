"""All shovels of a node: a runner for each parameter of the component `shovel` that is its own."""

from __future__ import annotations

import asyncio
import logging
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from leveret.core.admin.node import ElsewhereError
from leveret.features.shovels.parameters import (
    COMPONENT,
    InvalidShovelError,
    ShovelDefinition,
)
from leveret.ports.log_text import one_line, quoted
from leveret.shovels.runner import ShovelRunner

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping

    from leveret.core.definitions.parameters import Parameters
    from leveret.core.events import Emit
    from leveret.ports.definitions import Json
    from leveret.shovels.dialing import ShovelDialer
    from leveret.shovels.placing import ShovelPlacing

__all__ = ["ShovelServices", "Shovels"]

logger = logging.getLogger("leveret.shovel")

DELETE_RETRY_SECONDS: Final = 5.0
STATES: Final = ("starting", "running", "terminated")  # by which they are counted

Row = dict[str, Any]


@dataclass(frozen=True, slots=True)
class ShovelServices:
    """Parts of a node that shovels need.

    `delete(vhost, name)` deletes a shovel's parameter, in a cluster by the controller; it returns
    why it could not, or an empty text. `ask(node)` returns the rows of another node.
    """

    node_name: str
    spawn: Callable[[Coroutine[Any, Any, None]], asyncio.Task[None]]
    wall_ms: Callable[[], int]
    cluster_name: Callable[[], str]
    emit: Emit
    delete: Callable[[str, str], Awaitable[str]]
    ask: Callable[[int], Awaitable[list[Row]]]


class _Running:
    """One shovel of this node."""

    def __init__(self, value: Json, runner: ShovelRunner | None, reason: str, at_ms: int) -> None:
        self.value = value  # the parameter that it was made of
        self.runner = runner  # None: the stored parameter is invalid
        self.reason = reason
        self.since_ms = at_ms
        self.task: asyncio.Task[None] | None = None
        self.is_complete = False  # its parameter is being deleted by itself


class Shovels:
    """Runs the shovels of `parameters` that `placing` gives to this node."""

    def __init__(
        self,
        parameters: Parameters,
        dialer: ShovelDialer,
        placing: ShovelPlacing,
        services: ShovelServices,
    ) -> None:
        self._parameters = parameters
        self._dialer = dialer
        self._placing = placing
        self._services = services
        self._running: dict[tuple[str, str], _Running] = {}
        self._ending: set[asyncio.Task[None]] = set()
        self._forwarded = 0  # by runners that have ended
        self._is_closed = False

    def start(self) -> None:
        """Start what this node runs, and follow all changes."""
        self._parameters.follow(COMPONENT, self._changed)
        self._placing.follow(self._check_all)
        self._check_all()

    async def close(self) -> None:
        """Stop all; what is in flight returns to its source."""
        self._is_closed = True
        for key in list(self._running):
            self._stop(key)
        if self._ending:
            await asyncio.wait(self._ending)

    # -- which run

    def _check_all(self) -> None:
        stored = {(one.vhost, one.name) for one in self._parameters.select(component=COMPONENT)}
        for vhost, name in stored | self._running.keys():
            self._changed(vhost, name)

    def _changed(self, vhost: str, name: str) -> None:
        """Start, replace or stop a shovel as its parameter and its place say."""
        key = vhost, name
        parameter = self._parameters.find(vhost, COMPONENT, name)
        running = self._running.get(key)
        if self._is_closed or (
            running is not None
            and parameter is not None
            and running.value == parameter.value
            and self._placing.node_of(*key) is None
        ):
            return
        before = self._stop(key)
        if parameter is not None and self._placing.node_of(*key) is None:
            self._start(key, parameter.value, before)

    def _stop(self, key: tuple[str, str]) -> asyncio.Task[None] | None:
        """Stop a shovel, if it runs here; return its task, which may take a moment."""
        running = self._running.pop(key, None)
        if running is None:
            return None
        if running.runner is not None:
            self._forwarded += running.runner.forwarded
        self._services.emit("shovel.worker.removed", {"vhost": key[0], "name": key[1]})
        if running.task is None or running.task.done() or running.is_complete:
            return None
        running.task.cancel()
        return running.task

    def _start(self, key: tuple[str, str], value: Json, before: asyncio.Task[None] | None) -> None:
        services = self._services
        try:
            shovel = ShovelDefinition.parse(*key, value)
        except InvalidShovelError as error:
            reason = one_line(error)
            self._running[key] = _Running(value, None, reason, services.wall_ms())
            logger.warning(
                "Shovel %s in virtual host %s cannot run: %s",
                quoted(key[1]),
                quoted(key[0]),
                reason,
            )
            return
        runner = ShovelRunner(
            shovel, self._dialer, services.cluster_name, services.wall_ms, self._report
        )
        running = self._running[key] = _Running(value, runner, "", services.wall_ms())
        task = running.task = services.spawn(self._run(key, running, runner, before))
        self._ending.add(task)
        task.add_done_callback(self._ending.discard)

    async def _run(
        self,
        key: tuple[str, str],
        running: _Running,
        runner: ShovelRunner,
        before: asyncio.Task[None] | None,
    ) -> None:
        """Run a shovel once the one that it replaces has ended, and delete it when it is done."""
        if before is not None:
            await asyncio.wait([before])
        if not await runner.run():
            return
        logger.info(
            "Shovel %s in virtual host %s is stopping (it was configured to autodelete and "
            "transfer is completed)",
            quoted(key[1]),
            quoted(key[0]),
        )
        running.is_complete = True
        while self._running.get(key) is running and not self._is_closed:
            problem = await self._services.delete(*key)
            if not problem:
                return
            logger.warning("Shovel %s could not delete itself: %s", quoted(key[1]), problem)
            await asyncio.sleep(DELETE_RETRY_SECONDS)

    def _report(self, runner: ShovelRunner) -> None:
        shovel = runner.shovel
        headers = {"vhost": shovel.vhost, "name": shovel.name, "status": runner.state}
        if runner.reason:
            headers["reason"] = runner.reason
        self._services.emit("shovel.worker.status", headers)

    def restart(self, vhost: str, name: str) -> bool:
        """Connect a shovel anew; False if it does not exist. Raises ElsewhereError."""
        parameter = self._parameters.find(vhost, COMPONENT, name)
        if parameter is None:
            return False
        node = self._placing.node_of(vhost, name)
        if node is not None:
            raise ElsewhereError(f"shovel '{name}' is run by node {node}", node)
        before = self._stop((vhost, name))
        self._start((vhost, name), parameter.value, before)
        return True

    # -- what is shown

    @property
    def counts(self) -> Mapping[str, int]:
        """Number of shovels that run here, by state."""
        found = dict.fromkeys(STATES, 0)
        for running in self._running.values():
            state = "terminated" if running.runner is None else running.runner.state
            found[state if state in found else "running"] += 1
        return found

    @property
    def forwarded(self) -> int:
        """Number of messages that shovels have published since the node started."""
        runners = (running.runner for running in self._running.values())
        return self._forwarded + sum(one.forwarded for one in runners if one is not None)

    def rows_here(self) -> list[Row]:
        """Return the states of those that run here, by virtual host and name."""
        return [self._row(key, running) for key, running in sorted(self._running.items())]

    async def rows(self) -> list[Row]:
        """Return the states of all; those of nodes that do not answer are left out."""
        others = await asyncio.gather(*map(self._services.ask, self._placing.others()))
        return _merged([self.rows_here(), *others])

    def _row(self, key: tuple[str, str], running: _Running) -> Row:
        runner = running.runner
        since_ms = running.since_ms if runner is None else runner.since_ms
        row: Row = {
            "node": self._services.node_name,
            "timestamp": _local_time(since_ms),
            "name": key[1],
            "vhost": key[0],
            "type": "dynamic",
            "state": "terminated" if runner is None else runner.state,
        }
        if runner is None:
            return {**row, "reason": running.reason}
        if runner.transfer is not None:
            row |= _details(runner)
        elif runner.reason:
            row["reason"] = runner.reason
        return {**row, "forwarded": runner.forwarded}


def _details(runner: ShovelRunner) -> Row:
    """Return what RabbitMQ tells of a shovel that runs."""
    shovel, transfer = runner.shovel, runner.transfer
    assert transfer is not None, "it runs"
    source_uri, destination_uri = runner.uris
    return {
        "src_uri": source_uri,
        "src_protocol": shovel.source.protocol,
        "dest_protocol": shovel.destination.protocol,
        "dest_uri": destination_uri,
        **{f"src_{name}": value for name, value in shovel.source.facts.items()},
        **{f"dest_{name}": value for name, value in shovel.destination.facts.items()},
        "blocked_status": transfer.state,
        "pending": transfer.pending_count,
        "remaining": "unlimited" if transfer.remaining is None else transfer.remaining,
        "remaining_unacked": "unlimited" if transfer.unpublished is None else transfer.unpublished,
    }


def _merged(parts: Iterable[list[Row]]) -> list[Row]:
    rows = [row for part in parts for row in part]
    return sorted(rows, key=lambda row: (str(row.get("vhost")), str(row.get("name"))))


def _local_time(at_ms: int) -> str:
    """Return a time as RabbitMQ writes it: local, its hour without a leading zero."""
    at = time.localtime(at_ms / 1000)
    day = f"{at.tm_year}-{at.tm_mon:02}-{at.tm_mday:02}"
    return f"{day} {at.tm_hour}:{at.tm_min:02}:{at.tm_sec:02}"
