"""Faults of ZooKeeper and of the network to it: no write is lost, made twice, or told otherwise."""

import asyncio
import struct
from contextlib import asynccontextmanager

import pytest

from leveret.ports.coordination import (
    ConflictError,
    CoordinatorUnavailableError,
    KeyChange,
    NodeIdTakenError,
    NodeRegistration,
    NotControllerError,
    OutcomeUnknownError,
)
from leveret.zookeeper import ZooKeeperCoordinator, ZooKeeperSettings, connection
from tests.support.waiting import eventually
from tests.support.zookeeper import Relay, running_ensemble, running_zookeeper


@pytest.fixture
async def relay(zookeeper):
    relay = Relay(zookeeper.port)
    await relay.start()
    yield relay
    await relay.close()


def registered(node):
    return NodeRegistration(node, f"host{node}:1", f"host{node}:2", f"directory {node}")


async def outcome(write):
    (found,) = await asyncio.gather(write, return_exceptions=True)
    return found


class Account:
    """Writers that add to lists by compare and swap, and what they were told.

    Each writes its own number behind what it has read. So a write that is lost, made twice, or made
    though it was told to have failed shows in the list.
    """

    def __init__(self, coordinators):
        self.coordinators = coordinators
        self.made = []
        self.refused = []
        self.stopped = False

    async def write(self, index):
        coordinator = self.coordinators[index % len(self.coordinators)]
        number = 0
        while not self.stopped:
            number += 1
            await self.append(coordinator, f"{index}.{number}")
            await asyncio.sleep(0.002)

    async def append(self, coordinator, name):
        while True:
            entry = coordinator.entries.get("list/all")
            text = entry.value + b" " if entry else b""
            changes = [
                KeyChange("list/all", text + name.encode(), entry.version if entry else 0),
                KeyChange(f"list/one/{name}", b"", 0),
            ]
            try:
                await coordinator.write(changes)
            except ConflictError:
                await asyncio.sleep(0)
                continue
            except CoordinatorUnavailableError:
                self.refused.append(name)
                await asyncio.sleep(0.05)
                return
            self.made.append(name)
            return

    @asynccontextmanager
    async def running(self, writers):
        async with asyncio.TaskGroup() as group:
            for index in range(writers):
                group.create_task(self.write(index))
            try:
                yield
            finally:
                self.stopped = True

    async def check(self):
        for coordinator in self.coordinators:
            await eventually(lambda each=coordinator: each.is_connected)
            await coordinator.catch_up()
            found = coordinator.entries["list/all"].value.decode().split()
            assert len(found) == len(set(found))
            assert sorted(found) == sorted(self.made)
            assert not set(found) & set(self.refused)
            keys = list(coordinator.entries.keys("list/one/"))
            assert len(keys) == len(self.made)


async def test_writes_survive_a_zookeeper_that_stands_still(opened, zookeeper):
    account = Account([await opened(node) for node in (1, 2, 3)])
    async with account.running(6):
        for seconds in (0.1, 0.6, 1.5, 3.0):
            await asyncio.sleep(0.4)
            zookeeper.pause()
            await asyncio.sleep(seconds)
            zookeeper.resume()
            made = len(account.made)
            await eventually(lambda made=made: len(account.made) > made + 5)
    await account.check()


async def test_writes_survive_kills_of_zookeeper(opened, zookeeper):
    account = Account([await opened(node) for node in (1, 2, 3)])
    async with account.running(6):
        for _ in range(3):
            await asyncio.sleep(0.4)
            zookeeper.kill()
            await asyncio.to_thread(zookeeper.start)
            made = len(account.made)
            await eventually(lambda made=made: len(account.made) > made + 5)
    await account.check()


async def test_writes_survive_cuts_between_a_node_and_zookeeper(opened, relay):
    account = Account([await opened(1), await opened(2, relay.address)])
    async with account.running(4):
        for _ in range(15):
            await asyncio.sleep(0.15)
            relay.drop()
        relay.cut()
        await asyncio.sleep(0.5)
        relay.pass_on()
        await asyncio.sleep(1)
    await account.check()


@pytest.mark.parametrize("direction", ["up", "down"])
async def test_writes_survive_a_network_that_works_one_way(opened, relay, direction):
    """Requests arrive and answers do not, or the other way round."""
    account = Account([await opened(1), await opened(2, relay.address)])
    async with account.running(4):
        for seconds in (0.3, 1.0, 2.5):
            await asyncio.sleep(0.3)
            relay.hold(direction)
            await asyncio.sleep(seconds)
            relay.pass_on()
            made = len(account.made)
            await eventually(lambda made=made: len(account.made) > made + 5)
    await account.check()


async def test_a_node_is_registered_again_after_its_session_has_expired(opened, relay):
    one, two = await opened(1), await opened(2, relay.address)
    session, connections = two.session, []
    two.follow_connection(lambda: connections.append(two.is_connected))
    relay.cut()
    await eventually(lambda: set(one.nodes) == {1})
    number = await one.write([KeyChange("q/a", b"1")])
    with pytest.raises(CoordinatorUnavailableError, match="has not answered for"):
        await two.write([KeyChange("q/a", b"2")])
    relay.pass_on()
    # All at the same time: on a busy machine such a short session may expire once more.
    await eventually(lambda: set(one.nodes) == {1, 2} and two.is_connected)
    assert connections[:2] == [False, True]
    await two.catch_up()
    assert two.entries["q/a"] == (number, b"1")
    assert two.session == session
    await eventually(lambda: 2 in one.nodes and one.nodes[2].session == session)


async def test_writes_that_wait_are_refused_once_zookeeper_stays_away(opened, relay):
    one = await opened(1, relay.address)
    relay.cut()
    await eventually(lambda: not one.is_connected)
    waiting = asyncio.gather(
        one.write([KeyChange("q/a", b"1")]), one.catch_up(), return_exceptions=True
    )
    outcomes = await asyncio.wait_for(waiting, 60)
    assert [type(outcome) for outcome in outcomes] == [CoordinatorUnavailableError] * 2
    relay.pass_on()
    await eventually(lambda: one.is_connected)
    await one.catch_up()
    assert "q/a" not in one.entries


async def test_writes_that_wait_are_made_when_zookeeper_is_soon_back(opened, relay):
    one = await opened(1, relay.address, session_timeout_ms=4000)
    relay.cut()
    await eventually(lambda: not one.is_connected)
    waiting = asyncio.gather(one.write([KeyChange("q/a", b"1")]), one.catch_up())
    await asyncio.sleep(0.2)
    relay.pass_on()
    await asyncio.wait_for(waiting, 60)
    assert one.entries["q/a"].value == b"1"


async def test_a_write_under_way_when_the_node_closes_is_told_to_be_unknown(opened, relay):
    # A session that lasts: else the connection is given up before a busy machine has sent it.
    one = await opened(1, relay.address, session_timeout_ms=10_000)
    two = await opened(2)
    # What the first reads of the second's coming would be held, too, and its write wait behind it.
    await eventually(lambda: set(one.nodes) == {1, 2})
    await one.catch_up()
    relay.hold("down")
    async with asyncio.TaskGroup() as group:
        under_way = group.create_task(outcome(one.write([KeyChange("q/a", b"1")])))
        await eventually(lambda: "q/a" in two.entries)
        waiting = group.create_task(outcome(one.write([KeyChange("q/b", b"1")])))
        await asyncio.sleep(0)
        await one.close()
    assert type(under_way.result()) is OutcomeUnknownError
    assert type(waiting.result()) is CoordinatorUnavailableError
    await two.catch_up()
    assert list(two.entries.keys("q/")) == ["q/a"]


async def test_an_expired_node_whose_id_was_taken_stays_out(opened, relay):
    one, old = await opened(1), await opened(2, relay.address)
    relay.cut()
    await eventually(lambda: set(one.nodes) == {1})
    new = await opened(2, directory="another")
    assert new.session == old.session + 1
    relay.pass_on()
    await eventually(lambda: isinstance(old.failure, NodeIdTakenError))
    assert not old.is_connected
    with pytest.raises(NodeIdTakenError):
        await old.write([KeyChange("q/a", b"1")])
    await new.write([KeyChange("q/a", b"2")])
    assert one.nodes[2].session == new.session


async def test_a_node_id_is_free_once_the_killed_process_has_expired(opened, relay):
    await opened(2, relay.address)
    relay.cut()
    again = await opened(2, directory="another machine")  # waits for the session to expire
    assert again.session == 2


async def test_another_controller_is_elected_and_the_old_one_is_fenced(opened, relay):
    old, new = await opened(1, relay.address), await opened(2)
    assert old.is_controller
    relay.hold("up", "down")
    assert old.is_controller  # it does not know better
    write = asyncio.ensure_future(old.write_as_controller([KeyChange("q/a", b"old")]))  # noqa: TID251
    await eventually(lambda: new.is_controller)
    await new.write_as_controller([KeyChange("q/a", b"new")])
    relay.pass_on()
    with pytest.raises(NotControllerError):
        await write
    await eventually(lambda: not old.is_controller and old.controller == 2)
    assert new.entries["q/a"].value == b"new"


async def test_a_controller_keeps_its_place_over_a_short_cut(opened, relay):
    one, two = await opened(1, relay.address, session_timeout_ms=4000), await opened(2)
    version = one.entries.version("controller")
    relay.drop()
    await eventually(lambda: not one.is_connected)
    await eventually(lambda: one.is_connected)
    await one.write_as_controller([KeyChange("q/a", b"1")])
    assert two.controller == 1
    assert one.entries.version("controller") == version


async def test_the_loop_is_not_held_while_zookeeper_is_away(opened, zookeeper):
    one = await opened(1)
    loop = asyncio.get_running_loop()
    zookeeper.pause()
    try:
        longest, last = 0.0, loop.time()
        while one.is_connected:
            await asyncio.sleep(0.01)
            longest, last = max(longest, loop.time() - last), loop.time()
    finally:
        zookeeper.resume()
    assert longest < 0.5
    await eventually(lambda: one.is_connected)


async def test_a_follower_that_fails_is_logged_and_all_go_on(opened, caplog):
    one, two = await opened(1), await opened(2)
    told = []

    def fail(*_):
        raise ValueError("no follower should")

    for follow in (two.follow, two.follow_nodes, two.follow_controller, two.follow_connection):
        follow(fail)
    two.follow(lambda sequence, _: told.append(sequence))
    await one.write([KeyChange("q/a", b"1")])
    three = await opened(3)
    await one.close()  # the controller
    await eventually(lambda: two.is_controller or three.is_controller)
    await three.write([KeyChange("q/b", b"1")])
    await two.catch_up()
    assert {"q/a", "q/b"} <= set(two.entries)
    assert told[-1] == two.sequence
    assert two.failure is None
    faults = [each for each in caplog.records if "a fault of Leveret" in each.message]
    assert len(faults) >= 4
    assert all(each.exc_info[0] is ValueError for each in faults)
    caplog.clear()


async def test_a_server_that_sends_nonsense_is_left_and_tried_again(opened, relay):
    """Kazoo's thread ends when an answer has another number than its request."""
    one = await opened(1, relay.address)
    seen = []
    one.follow_connection(lambda: seen.append(one.is_connected))
    relay.inject(struct.pack(">iiqi", 16, 12345, 0, 0))
    await eventually(lambda: False in seen and one.is_connected)
    await one.write([KeyChange("q/a", b"1")])


async def test_writes_survive_the_loss_of_leaders_of_zookeeper(tmp_path):
    with running_ensemble(tmp_path) as servers:
        addresses = ",".join(server.address for server in servers)
        settings = ZooKeeperSettings(f"{addresses}/cluster", session_timeout_ms=2000)
        async with asyncio.TaskGroup() as group:
            coordinators = [
                await ZooKeeperCoordinator.open(settings, registered(node), group.create_task)
                for node in (1, 2, 3)
            ]
            account = Account(coordinators)
            async with account.running(6):
                for server in servers:
                    await asyncio.sleep(0.5)
                    server.kill()
                    made = len(account.made)
                    await eventually(lambda made=made: len(account.made) > made + 5)
                    await asyncio.to_thread(server.start)
            await account.check()
            for coordinator in coordinators:
                await coordinator.close()


async def test_a_write_that_zookeeper_never_takes_is_given_up(tmp_path):
    """A smaller jute.maxbuffer breaks the connection each time."""
    with running_zookeeper(tmp_path / "server", "-Djute.maxbuffer=50000") as server:
        settings = ZooKeeperSettings(f"{server.address}/cluster", session_timeout_ms=5000)
        async with asyncio.TaskGroup() as group:
            one = await ZooKeeperCoordinator.open(settings, registered(1), group.create_task)
            with pytest.raises(CoordinatorUnavailableError, match=r"jute\.maxbuffer"):
                await one.write([KeyChange("q/a", bytes(100_000))])
            await one.write([KeyChange("q/b", b"1")])
            await one.catch_up()
            assert list(one.entries.keys("q/")) == ["q/b"]
            await one.close()


async def test_a_node_that_waits_for_zookeeper_says_so(opened, relay, monkeypatch, caplog):
    monkeypatch.setattr(connection, "RESTART_SECONDS", 0.05)
    relay.cut()
    with pytest.raises(CoordinatorUnavailableError, match="the node does not start"):
        await opened(1, relay.address, connect_timeout_ms=1000)
    assert "the node waits for it, 1 s in all" in caplog.text


async def test_a_node_does_not_start_without_zookeeper(opened, relay):
    relay.cut()
    with pytest.raises(CoordinatorUnavailableError, match="the node does not start"):
        await opened(1, relay.address, connect_timeout_ms=500)
