"""Nodes with real coordinators, each behind a relay of its own."""

from __future__ import annotations

import asyncio
from contextlib import ExitStack
from itertools import count
from typing import TYPE_CHECKING

from leveret.cluster.coordination.settings import ZooKeeperSettings
from leveret.cluster.coordination.zookeeper import ZooKeeperCoordinator, boottime_ms
from leveret.config.cluster import parse_connect_string
from leveret.errors import LeveretError
from tests.support.waiting import eventually
from tests.support.zookeeper import HOST, relay

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.support.zookeeper import Relay

roots = count(1)


class ZooKeeperBench:
    """See tests.contracts.coordinator. Each has a tree of its own."""

    def __init__(self, *ports: int, session_ms: int = 2_000) -> None:
        self.session_ms = session_ms
        self.now_ms = boottime_ms
        self.root = f"/leveret/{next(roots)}"
        self.relays: dict[ZooKeeperCoordinator, list[Relay]] = {}
        self._ports = ports
        self._stack = ExitStack()

    async def connect(self, *ports: int, **settings: object) -> ZooKeeperCoordinator:
        """Return the coordinator of another node; it knows all servers, or those that are named."""
        relays = [self._stack.enter_context(relay(port)) for port in ports or self._ports]
        servers = ",".join(f"{HOST}:{one.port}" for one in relays)
        connect = parse_connect_string(servers + self.root)
        made = ZooKeeperCoordinator(ZooKeeperSettings(connect, self.session_ms, **settings))
        self.relays[made] = relays
        await made.start()
        return made

    async def close(self) -> None:
        await asyncio.gather(*(one.close() for one in self.relays))
        self._stack.close()

    async def pass_ms(self, milliseconds: int) -> None:
        await asyncio.sleep(milliseconds / 1000)

    async def until(self, condition: Callable[[], object]) -> None:
        await eventually(condition)

    async def until_reachable(self, coordinator: ZooKeeperCoordinator) -> None:
        deadline = asyncio.get_running_loop().time() + 60
        while True:
            try:
                await coordinator.read("/")
            except LeveretError:
                assert asyncio.get_running_loop().time() < deadline
                await asyncio.sleep(0.05)
            else:
                return

    def cut(self, coordinator: ZooKeeperCoordinator) -> None:
        for one in self.relays[coordinator]:
            one.cut()

    def lose_answers(self, coordinator: ZooKeeperCoordinator) -> None:
        for one in self.relays[coordinator]:
            one.passes_answers = False

    def heal(self, coordinator: ZooKeeperCoordinator) -> None:
        for one in self.relays[coordinator]:
            one.heal()
