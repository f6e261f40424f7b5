"""The contract of coordinators on a real ZooKeeper, and what only that shows."""

import asyncio
import datetime as dt
import threading
import time
from contextlib import asynccontextmanager

import pytest

from examples.cluster.zookeeper import TICK_MS
from leveret.cli.certs import make_certificates
from leveret.cluster.coordination import kazoo_client, session_keeper, zookeeper
from leveret.cluster.coordination.settings import ZooKeeperTls
from leveret.ports.coordinator import (
    CoordinatorEntry,
    CoordinatorRefusedError,
    CoordinatorUnavailableError,
    CreateEntry,
    SetEntry,
    WriteOutcome,
)
from tests.cluster.coordination.bench import ZooKeeperBench
from tests.contracts.coordinator import CoordinatorContract, Hints, Losses
from tests.support.ports import free_ports
from tests.support.zookeeper import HOST, running_ensemble, running_server

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
    one.hold_lease(path)
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


# -- the server


@pytest.fixture
async def own(tmp_path, processes):
    """A server of the test's own, and nodes."""
    with running_server(tmp_path) as server:
        async with nodes_of(server) as bench:
            yield server, bench


async def test_a_restart_of_the_only_server_leaves_sessions_and_entries(own):
    server, bench = own
    one = await live(bench)
    losses, session = Losses(one), one.session
    server.stop()
    assert await one.commit(CreateEntry("/while-it-is-away")) is UNKNOWN
    await bench.until(lambda: one.lease_until_ms < bench.now_ms())
    server.start()
    await bench.until_reachable(one)
    assert (await one.read("/live")).owner == session == one.session
    await bench.until(lambda: one.lease_until_ms > bench.now_ms())
    assert losses.count == 0


async def test_no_session_ends_while_there_is_no_server(own):
    """Several clients of kazoo's are thrown away meanwhile."""
    server, bench = own
    one = await live(bench)
    losses, session = Losses(one), one.session
    server.stop()
    await bench.pass_ms(8 * bench.session_ms)
    server.start()
    await bench.until_reachable(one)
    assert (losses.count, one.session) == (0, session)
    await bench.until(lambda: one.lease_until_ms > bench.now_ms())


async def test_nobody_waits_for_ever_for_a_server_that_stands_still(own):
    server, bench = own
    one = await live(bench)
    server.pause()
    paused_ms = bench.now_ms()
    results = await asyncio.gather(
        one.read("/live"), one.commit(CreateEntry("/a")), return_exceptions=True
    )
    assert isinstance(results[0], CoordinatorUnavailableError)
    assert results[1] is UNKNOWN
    await bench.until(lambda: one.lease_until_ms < bench.now_ms())
    assert one.lease_until_ms <= paused_ms + bench.session_ms // 2
    server.resume()
    await bench.until_reachable(one)
    # Its clock went on, so it may have ended the session.
    entry = await one.read("/live")
    assert entry is None or entry.owner == one.session


async def test_entries_belong_to_their_user(own):
    _, bench = own
    ours = {"user": "leveret", "password": "secret"}
    one = await bench.connect(**ours)
    assert await one.commit(CreateEntry("/a", b"1")) is DONE
    assert await (await bench.connect(**ours)).read("/a") == CoordinatorEntry(b"1", 0)
    for settings in ({}, {"user": "leveret", "password": "wrong"}):
        stranger = await bench.connect(**settings)
        for request in (
            stranger.read("/a"),
            stranger.children("/a"),
            stranger.commit(SetEntry("/a", b"2", 0)),
            stranger.commit(CreateEntry("/b")),
        ):
            with pytest.raises(
                CoordinatorRefusedError, match="check the user and password"
            ) as told:
                await request
            assert "secret" not in str(told.value)
    assert await one.read("/a") == CoordinatorEntry(b"1", 0)


# Kazoo leaves the socket of a handshake that failed to the garbage collector.
@pytest.mark.filterwarnings("ignore:unclosed <ssl.SSLSocket:ResourceWarning")
async def test_over_tls_servers_are_known_by_their_certificates(tmp_path, processes, monkeypatch):
    make_certificates(tmp_path / "certs", ["localhost", HOST], "node", dt.datetime.now(dt.UTC))
    certificates = tmp_path / "certs"
    pair = [(certificates / name).read_text() for name in ("server-key.pem", "server.pem")]
    (tmp_path / "store.pem").write_text("".join(pair))
    secure = free_ports(1)[0]
    more = (
        f"secureClientPort={secure}\nsecureClientPortAddress=127.0.0.1\n"
        "serverCnxnFactory=org.apache.zookeeper.server.NettyServerCnxnFactory\n"
        f"ssl.keyStore.location={tmp_path / 'store.pem'}\n"
        f"ssl.trustStore.location={certificates / 'ca.pem'}\n"
    )
    with running_server(tmp_path, more):
        async with nodes_of() as bench:
            known = ZooKeeperTls(
                certificates / "ca.pem",
                certificates / "client.pem",
                certificates / "client-key.pem",
            )
            one = await bench.connect(secure, tls=known)
            assert await one.commit(CreateEntry("/a")) is DONE
            monkeypatch.setattr(zookeeper, "START_SECONDS", 2)
            with pytest.raises(CoordinatorUnavailableError, match="certificate"):
                await bench.connect(secure, tls=ZooKeeperTls())


# -- the client


async def test_a_client_that_hangs_is_thrown_away_and_the_session_goes_on(server, monkeypatch):
    select, released, hung = kazoo_client.KazooConnections.select, threading.Event(), []

    def hang(connections, *arguments, **options):
        if not hung or hung[0] is connections:
            hung[:] = [connections]
            released.wait()
        return select(connections, *arguments, **options)

    async with nodes_of(server, session_ms=8_000) as bench:
        one = await live(bench)
        losses, session = Losses(one), one.session
        monkeypatch.setattr(kazoo_client.KazooConnections, "select", hang)
        try:
            await bench.until(lambda: hung)
            with pytest.raises(CoordinatorUnavailableError):
                await one.read("/live")
            until_ms = one.lease_until_ms
            await bench.until(lambda: one.lease_until_ms > until_ms)
            assert (losses.count, one.session) == (0, session)
        finally:
            released.set()
        assert (await one.read("/live")).owner == session


async def test_a_lease_goes_by_the_session_that_was_granted(server, caplog):
    granted_ms = 20 * TICK_MS
    async with nodes_of(server, session_ms=60_000) as bench:
        one = await live(bench)
        await bench.until(lambda: one.lease_until_ms)
        until_ms = one.lease_until_ms
        await bench.until(lambda: one.lease_until_ms > until_ms)
        assert one.lease_until_ms <= bench.now_ms() + granted_ms // 2
        assert f"grants sessions of {granted_ms} ms, not 60000" in caplog.text


async def test_a_node_whose_event_loop_hangs_loses_its_lease_and_then_its_session(server):
    async with nodes_of(server, session_ms=8_000) as bench:
        one, other = await live(bench), await bench.connect()
        losses = Losses(one)
        time.sleep(7)  # noqa: ASYNC251 - kazoo pings all the while
        assert one.lease_until_ms < bench.now_ms()
        assert await other.read("/live") is None
        await bench.until(lambda: losses.count)


async def test_from_time_to_time_everything_is_read_again(server, monkeypatch):
    monkeypatch.setattr(session_keeper, "REREAD_MS", 500)
    async with nodes_of(server) as bench:
        one, hints = await bench.connect(), Hints()
        one.watch("/a", hints)
        await bench.until(lambda: hints.count >= 3)


async def test_what_was_asked_for_in_one_session_is_not_begun_in_another(bench):
    one, other = await live(bench), await bench.connect()
    losses = Losses(one)
    bench.cut(one)
    await gone_ms(bench, other, "/live")
    bench.heal(one)
    await bench.until(lambda: losses.count)
    await bench.until_reachable(one)
    one._number -= 1  # as if the loop had not heard of it
    assert await one.commit(CreateEntry("/live", b"1", is_ephemeral=True)) is UNKNOWN
    one.hold_lease("/live")
    assert one.session is None
    one._number += 1
    assert await one.read("/live") is None
    assert one.lease_until_ms == 0


# -- three servers


async def test_a_lease_is_over_before_the_others_miss_whoever_is_cut_off_with_a_server(ensemble):
    async with nodes_of(*ensemble.servers) as bench:
        for round_ in range(3):
            follower = ensemble.follower()
            ports = [server.port for server in ensemble.servers]
            one = await live(bench, ports.pop(follower), path=f"/live{round_}")
            other = await bench.connect(*ports)
            for link in ensemble.links[follower]:
                link.swallow()
            gone = await gone_ms(bench, other, f"/live{round_}")
            assert one.lease_until_ms < gone
            for link in ensemble.links[follower]:
                link.heal()
            await bench.until_reachable(one)


async def test_a_session_moves_to_another_server_when_its_own_stands_still(ensemble):
    async with nodes_of(*ensemble.servers, session_ms=8_000) as bench:
        one = await live(bench)
        losses, session = Losses(one), one.session
        used = next(n for n, link in enumerate(bench.relays[one]) if link.is_used)
        until_ms = one.lease_until_ms
        ensemble.servers[used].pause()
        try:
            await bench.until(lambda: one.lease_until_ms > until_ms + bench.session_ms)
            assert (losses.count, one.session) == (0, session)
        finally:
            ensemble.servers[used].resume()
        await bench.until_reachable(one)


async def test_sessions_outlive_the_leading_server(ensemble):
    async with nodes_of(*ensemble.servers, session_ms=8_000) as bench:
        one = await live(bench)
        losses, session = Losses(one), one.session
        leader = next(server for server in ensemble.servers if server.mode == "leader")
        leader.stop()
        try:
            until_ms = one.lease_until_ms
            await bench.until(lambda: one.lease_until_ms > until_ms + bench.session_ms)
            assert (losses.count, one.session) == (0, session)
        finally:
            leader.start()
            leader.wait_ready()
