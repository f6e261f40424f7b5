"""The nodes that are live, as others read of them."""

import pytest

from leveret.cluster.entries import LIVE, LiveValue, MalformedEntryError, live_path
from leveret.cluster.live_nodes import LiveNodes, read_live
from leveret.ports.coordinator import CreateEntry
from tests.cluster.replicating import NEVER_MS, LoopTime
from tests.support.coordinator import FakeEnsemble
from tests.support.waiting import eventually


@pytest.fixture
async def coordinator():
    coordinator = FakeEnsemble(LoopTime(), session_ms=2 * NEVER_MS).client()
    await coordinator.commit(CreateEntry(LIVE, b""))
    yield coordinator
    await coordinator.close()


async def register(coordinator, node, value=None):
    live = LiveValue(incarnation=node + 10, host="127.0.0.1", port=1000 + node, release="0.1.0")
    value = live.to_bytes() if value is None else value
    await coordinator.commit(CreateEntry(live_path(node), value, is_ephemeral=True))


async def test_an_entry_that_nobody_understands_hides_no_others(coordinator, caplog):
    for node, value in enumerate((None, b"{}", None)):
        await register(coordinator, node, value)
    live = LiveNodes(coordinator)
    await eventually(lambda: live.incarnations == {0: 10, 2: 12})
    await eventually(lambda: "entry /live/1 is not as this release writes it" in caplog.text)
    await register(coordinator, 3)
    await eventually(lambda: live.incarnations == {0: 10, 2: 12, 3: 13})
    await live.close()


async def test_nobody_elects_by_an_entry_that_nobody_understands(coordinator):
    await register(coordinator, 0, b"{}")  # it may be that of the node that leads, and serves
    with pytest.raises(MalformedEntryError, match="/live/0"):
        await read_live(coordinator)
