"""A ZooKeeper for all tests of a file, and coordinators that are closed in the end."""

import asyncio
import secrets

import pytest

from leveret.ports.coordination import NodeRegistration
from leveret.zookeeper import ZooKeeperCoordinator, ZooKeeperSettings
from tests.support.zookeeper import running_zookeeper


@pytest.fixture(scope="module")
def zookeeper(tmp_path_factory):
    with running_zookeeper(tmp_path_factory.mktemp("zookeeper") / "server") as server:
        yield server


@pytest.fixture
def chroot():
    return secrets.token_hex(4)


@pytest.fixture
async def opened(zookeeper, chroot):
    """A function that opens a node's coordinator; all belong to one cluster."""
    coordinators = []
    async with asyncio.TaskGroup() as group:

        async def open_coordinator(node, address=zookeeper.address, directory="", **settings):
            registration = NodeRegistration(
                node, f"host{node}:1", f"host{node}:2", directory or f"directory {node}"
            )
            wanted = {"session_timeout_ms": 2000, **settings}
            coordinator = await ZooKeeperCoordinator.open(
                ZooKeeperSettings(f"{address}/{chroot}", **wanted), registration, group.create_task
            )
            coordinators.append(coordinator)
            return coordinator

        try:
            yield open_coordinator
        finally:
            for coordinator in coordinators:
                await coordinator.close()
