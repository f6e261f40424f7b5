"""Contract of every Coordinator, whatever it is made of."""

import asyncio
import secrets
from contextlib import asynccontextmanager

import pytest

from leveret.ports.coordination import (
    CONTROLLER_KEY,
    VALUE_BYTES_MAX,
    ConflictError,
    CoordinatorUnavailableError,
    KeyChange,
    KeyCheck,
    NodeIdTakenError,
    NodeRegistration,
    NotControllerError,
    WriteTooLargeError,
)
from leveret.zookeeper import ZooKeeperCoordinator, ZooKeeperSettings
from tests.memory_coordinator import MemoryEnsemble
from tests.support.waiting import eventually
from tests.support.zookeeper import running_zookeeper


@pytest.fixture(scope="module")
def zookeeper(tmp_path_factory):
    with running_zookeeper(tmp_path_factory.mktemp("zookeeper") / "server") as server:
        yield server


def registration(node, **changes):
    values = {"peer_address": f"host{node}:1", "client_address": f"host{node}:2", "rack": "r"}
    return NodeRegistration(node, directory=f"directory {node}", **{**values, **changes})


@pytest.fixture(params=["memory", "zookeeper"])
async def opened(request):
    """A function that opens a coordinator of a cluster; all are closed in the end."""
    coordinators = []
    if request.param == "memory":
        ensemble = MemoryEnsemble()

        async def open_coordinator(node):
            coordinators.append(ensemble.open(node))
            return coordinators[-1]

        yield open_coordinator
        return
    server = request.getfixturevalue("zookeeper")
    settings = ZooKeeperSettings(
        f"{server.address}/{secrets.token_hex(4)}", session_timeout_ms=1000
    )
    async with asyncio.TaskGroup() as group:

        async def open_coordinator(node):
            coordinators.append(await ZooKeeperCoordinator.open(settings, node, group.create_task))
            return coordinators[-1]

        try:
            yield open_coordinator
        finally:
            for coordinator in coordinators:
                await coordinator.close()


def values(coordinator, prefix=""):
    entries = coordinator.entries
    return {key: entries[key].value for key in entries.keys(prefix) if "/" in key}


@asynccontextmanager
async def watched(coordinator):
    """Yield the list of what followers were told, and compare it with the state in the end."""
    told = []
    copy = dict(values(coordinator))
    coordinator.follow(lambda sequence, changes: told.append((sequence, tuple(changes))))
    yield told
    for _, changes in told:
        for key, value, _ in changes:
            copy.pop(key, None) if value is None else copy.update({key: value})
    assert {key: value for key, value in copy.items() if "/" in key} == values(coordinator)
    assert [sequence for sequence, _ in told] == sorted({sequence for sequence, _ in told})


async def test_a_write_is_seen_on_return_and_by_others_after_catching_up(opened):
    one, two = await opened(registration(1)), await opened(registration(2))
    number = await one.write([KeyChange("q/a", b"1"), KeyChange("q/b", b"")])
    assert one.entries["q/a"] == (number, b"1")
    assert one.entries.version("q/b") == one.sequence == number
    await two.catch_up()
    assert values(two, "q/") == {"q/a": b"1", "q/b": b""}
    later = await two.write([KeyChange("q/a", None), KeyChange("q/never", None)])
    assert later > number
    await one.catch_up()
    assert one.entries.get("q/a") is None
    assert "q/a" not in one.entries
    assert one.entries.version("q/a") == 0
    assert one.cluster_id == two.cluster_id


async def test_keys_are_listed_by_prefix_in_order(opened):
    one = await opened(registration(1))
    names = ["q/b", "q/a", "b/z", "q/", "r/x", "q/ü", "q/a/b"]
    await asyncio.gather(*(one.write([KeyChange(name, b"x")]) for name in names))
    assert list(one.entries.keys("q/")) == ["q/", "q/a", "q/a/b", "q/b", "q/ü"]
    assert list(one.entries.keys("q/a")) == ["q/a", "q/a/b"]
    assert list(one.entries.keys("zzz")) == []
    assert list(one.entries.keys()) == sorted([*names, CONTROLLER_KEY, "sessions/1"])
    assert len(one.entries) == len(names) + 2


async def test_conflicts_name_their_keys_and_change_nothing(opened):
    one = await opened(registration(1))
    first = await one.write([KeyChange("q/a", b"1", 0)])
    with pytest.raises(ConflictError) as caught:
        await one.write(
            [
                KeyChange("q/a", b"2", 0),
                KeyChange("q/b", b"2"),
                KeyCheck("q/c", 7),
                KeyChange("q/d", b"2", 0),
            ]
        )
    assert caught.value.keys == ("q/a", "q/c")
    assert values(one, "q/") == {"q/a": b"1"}
    await one.write([KeyChange("q/a", b"2", first), KeyCheck("q/c", 0)])
    with pytest.raises(ConflictError):
        await one.write([KeyChange("q/a", None, first)])
    await one.write([KeyChange("q/a", None, one.entries.version("q/a"))])
    await one.write([KeyChange("q/a", b"new", 0)])


async def test_checks_alone_hold_for_the_latest_state(opened):
    one, two = await opened(registration(1)), await opened(registration(2))
    number = await one.write([KeyChange("q/a", b"1")])
    assert await two.write([KeyCheck("q/a", number)]) >= number
    assert await two.write([]) >= number
    with pytest.raises(ConflictError):
        await two.write([KeyCheck("q/a", 0)])


async def test_a_conflict_is_one_with_the_latest_state(opened):
    one, two = await opened(registration(1)), await opened(registration(2))
    await one.write([KeyChange("q/a", b"1")])
    await two.catch_up()
    await one.write([KeyChange("q/a", None)])
    await two.write([KeyChange("q/a", b"2", 0)])  # whether or not two had heard of the deletion
    assert values(two, "q/") == {"q/a": b"2"}


async def test_followers_hear_of_everything_once_and_in_order(opened):
    one, two = await opened(registration(1)), await opened(registration(2))
    await one.catch_up()
    async with watched(one) as told_one, watched(two) as told_two:
        for number in range(10):
            writer = (one, two)[number % 2]
            await writer.write([KeyChange(f"q/{number % 3}", str(number).encode())])
        await one.write([KeyChange("q/0", None)])
        await one.catch_up()
        await two.catch_up()
    assert told_one == told_two
    assert len(told_one) == 11
    assert all(change.expected is None for _, changes in told_one for change in changes)


async def test_writes_at_once_keep_their_order_and_outcomes(opened):
    one = await opened(registration(1))
    outcomes = await asyncio.gather(
        *(one.write([KeyChange("q/same", str(n).encode())]) for n in range(20)),
        *(one.write([KeyChange("q/first", str(n).encode(), 0)]) for n in range(20)),
        *(one.write([KeyChange(f"q/each/{n}", b"x", 0)]) for n in range(200)),
        return_exceptions=True,
    )
    same, first, each = outcomes[:20], outcomes[20:40], outcomes[40:]
    assert same == sorted(set(same))
    assert one.entries["q/same"] == (same[-1], b"19")
    assert [type(outcome) for outcome in first] == [int] + [ConflictError] * 19
    assert one.entries["q/first"].value == b"0"
    assert all(isinstance(outcome, int) for outcome in each)
    assert len(list(one.entries.keys("q/each/"))) == 200


async def test_nodes_count_together(opened):
    coordinators = [await opened(registration(node)) for node in (1, 2, 3)]

    async def count(coordinator):
        done = 0
        while done < 20:
            entry = coordinator.entries.get("count")
            number = 0 if entry is None else int(entry.value)
            change = KeyChange("count", str(number + 1).encode(), entry.version if entry else 0)
            try:
                await coordinator.write([change])
            except ConflictError:
                await asyncio.sleep(0)
            else:
                done += 1

    await asyncio.gather(*map(count, coordinators))
    for coordinator in coordinators:
        await coordinator.catch_up()
        assert coordinator.entries["count"].value == b"60"


async def test_what_is_too_large_is_refused(opened):
    one = await opened(registration(1))
    half = bytes(VALUE_BYTES_MAX)
    with pytest.raises(WriteTooLargeError):
        await one.write([KeyChange("q/a", half + b"x")])
    with pytest.raises(WriteTooLargeError):
        await one.write([KeyChange(f"q/{n}", half) for n in range(3)])
    with pytest.raises(WriteTooLargeError):
        await one.write([KeyChange("q" * 3000, b"")])
    with pytest.raises(ValueError, match="twice"):
        await one.write([KeyChange("q", b""), KeyChange("q", b"")])
    with pytest.raises(ValueError, match="empty"):
        await one.write([KeyChange("", b"")])
    await asyncio.gather(*(one.write([KeyChange(f"q/{n}", half)]) for n in range(5)))
    assert len(list(one.entries.keys("q/"))) == 5


async def test_nodes_see_each_other_come_and_go(opened):
    one = await opened(registration(1, incarnation=4, software="1.2", protocol_max=3))
    heard = []
    one.follow_nodes(lambda: heard.append(set(one.nodes)))
    assert one.nodes[1].session == one.session == 1
    two = await opened(registration(2))
    assert two.nodes[1] == one.nodes[1]
    assert (two.nodes[1].incarnation, two.nodes[1].software) == (4, "1.2")
    await eventually(lambda: set(one.nodes) == {1, 2})
    await two.close()
    assert not two.is_connected
    await eventually(lambda: set(one.nodes) == {1})
    assert heard == [{1, 2}, {1}]


async def test_each_start_has_a_greater_session(opened):
    one = await opened(registration(1))
    sessions = []
    for _ in range(3):
        two = await opened(registration(2))
        sessions.append(two.session)
        await eventually(lambda: 2 in one.nodes and one.nodes[2].session == sessions[-1])
        await two.close()
    assert sessions == [1, 2, 3]


async def test_a_node_id_is_had_by_one_process(opened):
    one = await opened(registration(1))
    with pytest.raises(NodeIdTakenError, match="node id 1"):
        await opened(NodeRegistration(1, "other:1", "other:2", "another directory"))
    assert one.is_connected
    await one.write([KeyChange("q/a", b"1")])


async def test_a_process_with_the_data_directory_replaces_the_one_before(opened):
    """A process that has locked the directory knows that the one before is dead."""
    await opened(registration(1))
    again = await opened(registration(1))
    assert again.session == 2
    assert again.nodes[1].session == 2
    assert again.is_connected


async def test_one_node_is_the_controller_and_another_after_it(opened):
    one, two = await opened(registration(1)), await opened(registration(2))
    changes = []
    two.follow_controller(lambda: changes.append((two.controller, two.is_controller)))
    assert (one.controller, one.is_controller) == (1, True)
    assert (two.controller, two.is_controller) == (1, False)
    number = await one.write_as_controller([KeyChange("q/a", b"1")])
    assert one.entries["q/a"].version == number
    with pytest.raises(NotControllerError):
        await two.write_as_controller([KeyChange("q/a", b"2")])
    with pytest.raises(ConflictError) as caught:
        await one.write_as_controller([KeyChange("q/a", b"1", 0)])
    assert caught.value.keys == ("q/a",)
    version = one.entries.version(CONTROLLER_KEY)
    await one.close()
    await eventually(lambda: two.is_controller and two.controller == 2)
    assert two.entries.version(CONTROLLER_KEY) > version
    await two.write_as_controller([KeyChange("q/a", b"2")])
    assert changes[-1] == (2, True)


async def test_a_controller_that_was_replaced_is_refused(opened):
    one = await opened(registration(1))
    await one.write_as_controller([KeyChange("q/a", b"1")])
    await one.write([KeyChange(CONTROLLER_KEY, b'{"node":2,"session":1,"epoch":9}')])
    assert not one.is_controller
    with pytest.raises(NotControllerError):
        await one.write_as_controller([KeyChange("q/a", b"2")])
    assert values(one, "q/") == {"q/a": b"1"}


async def test_nothing_is_written_once_closed(opened):
    one = await opened(registration(1))
    connections = []
    one.follow_connection(lambda: connections.append(one.is_connected))
    await one.close()
    await one.close()
    assert connections == [False]
    assert one.failure is None
    with pytest.raises(CoordinatorUnavailableError):
        await one.write([KeyChange("q/a", b"1")])
    with pytest.raises(CoordinatorUnavailableError):
        await one.catch_up()
