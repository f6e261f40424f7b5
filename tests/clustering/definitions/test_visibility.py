"""Clients are answered once all nodes that keep up have what was changed."""

import asyncio
from types import SimpleNamespace

import pytest

from leveret.clustering.definitions import visibility
from leveret.clustering.definitions.visibility import APPLIED, DefinitionVisibility
from leveret.links.errors import PeerUnavailableError, Unavailable
from leveret.links.identity import NodeIdentity

CONTROLLER, SECOND, THIRD = 1, 2, 3


class Links:
    """Links that keep what is sent; nodes in `down` are not connected."""

    def __init__(self):
        self.sent = []
        self.down = set()

    def peer(self, node):
        return SimpleNamespace(send=lambda kind, payload: self._send(node, kind, payload))

    def _send(self, node, _kind, payload):
        if node in self.down:
            raise PeerUnavailableError(node, Unavailable.DOWN)
        self.sent.append((node, *APPLIED.unpack(payload)))


@pytest.fixture
def coordinator():
    nodes = {node: SimpleNamespace(session=1) for node in (CONTROLLER, SECOND, THIRD)}
    return SimpleNamespace(nodes=nodes, controller=CONTROLLER, sequence=10)


def tell(here, node, sequence, session=1):
    identity = NodeIdentity("c", node, session, "test", frozenset())
    here.told(identity, memoryview(APPLIED.pack(sequence)))


async def is_waiting(task):
    await asyncio.sleep(0.01)
    return not task.done()


async def test_the_controller_waits_for_all_nodes(coordinator):
    here = DefinitionVisibility(coordinator, CONTROLLER)
    async with asyncio.TaskGroup() as group:
        reached = group.create_task(here.reached(10))
        assert await is_waiting(reached)
        tell(here, SECOND, 10)
        tell(here, THIRD, 9)
        assert await is_waiting(reached)
        here.told(NodeIdentity("c", THIRD, 1, "test", frozenset()), memoryview(b"no number"))
        tell(here, THIRD, 11, session=2)  # a session that is not registered yet
        assert await is_waiting(reached)
        tell(here, THIRD, 12)


async def test_a_node_that_does_not_keep_up_is_waited_for_once(coordinator, monkeypatch):
    monkeypatch.setattr(visibility, "WAIT_SECONDS_MAX", 0.02)
    here = DefinitionVisibility(coordinator, CONTROLLER)
    tell(here, SECOND, 10)
    await here.reached(10)
    async with asyncio.timeout(60):
        monkeypatch.setattr(visibility, "WAIT_SECONDS_MAX", 60)
        await here.reached(10)  # the third is late
        tell(here, THIRD, 10)
        reached = asyncio.get_running_loop().create_task(here.reached(11))
        assert await is_waiting(reached)
        tell(here, SECOND, 11)
        assert await is_waiting(reached)
        tell(here, THIRD, 11)
        await reached


async def test_a_node_tells_each_controller(coordinator):
    here = DefinitionVisibility(coordinator, SECOND)
    here.advanced(3)  # its links are not open yet
    here.links = links = Links()
    here.tell()
    here.advanced(4)
    coordinator.controller = THIRD
    here.tell()
    links.down.add(THIRD)
    here.advanced(5)
    coordinator.controller = SECOND
    here.advanced(6)
    coordinator.controller = None
    here.tell()
    assert links.sent == [(CONTROLLER, 3), (CONTROLLER, 4), (THIRD, 4)]
