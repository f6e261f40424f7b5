"""The contract of coordinators on a real ZooKeeper, and what only that shows."""

import asyncio
import time
from contextlib import asynccontextmanager

import pytest

from leveret.cluster.coordination import kazoo_client
from leveret.ports.coordinator import (
    CoordinatorEntry,
    CoordinatorRefusedError,
    CoordinatorUnavailableError,
    CreateEntry,
    SetEntry,
    WriteOutcome,
)
from tests.cluster.coordination.bench import ZooKeeperBench
from tests.contracts.coordinator import CoordinatorContract, Losses
from tests.support.waiting import eventually
from tests.support.zookeeper import running_ensemble, running_server

pytestmark = pytest.mark.zookeeper
DONE, UNKNOWN = WriteOutcome.DONE, WriteOutcome.UNKNOWN


@pytest.fixture(scope="module")
def server(tmp_path_factory, processes):
    with running_server(tmp_path_factory.mktemp("server")) as running:
        yield running


@pytest.fixture(scope="module")
def ensemble(tmp_path_factory, processes):
    with running_ensemble(tmp_path_factory.mktemp("ensemble")) as running:
        yield running


@asynccontextmanager
async def nodes_of(*servers, **options):
    bench = ZooKeeperBench(*(one.port for one in servers), **options)
    try:
        yield bench
    finally:
        await bench.close()


@pytest.fixture
async def bench(server):
    async with nodes_of(server) as made:
        yield made


async def live(bench, *ports, path="/live"):
    """Return a node with a lease."""
    one = await bench.connect(*ports)
    assert await one.commit(CreateEntry(path, b"1", is_ephemeral=True)) is DONE
    one.renew(path, b"1")
    await bench.until(lambda: one.lease_until_ms)
    return one


async def gone_ms(bench, other, path):
    """Return the time at which another node first misses an entry."""
    while True:
        try:
            if await other.read(path) is None:
                return bench.now_ms()
        except CoordinatorUnavailableError:
            await asyncio.sleep(0.01)


class TestZooKeeperCoordinator(CoordinatorContract):
    """The contract, on a real server."""
