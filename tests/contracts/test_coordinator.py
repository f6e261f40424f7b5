"""The contract of coordinators on the fake, and what the fake can do besides."""

import asyncio

import pytest

from leveret.ports.coordinator import CoordinatorEntry, CreateEntry, SetEntry, WriteOutcome
from tests.contracts.coordinator import CoordinatorContract, Hints, Losses
from tests.support.clock import FakeClock
from tests.support.coordinator import FakeEnsemble

STEP_MS = 5
UNTIL_MS = 60_000


class FakeBench:
    """Nodes with fake coordinators."""

    def __init__(self):
        self.clock = FakeClock()
        self.ensemble = FakeEnsemble(self.clock)
        self.session_ms = self.ensemble.session_ms
        self.now_ms = self.ensemble.now_ms

    async def connect(self):
        return self.ensemble.client()

    async def pass_ms(self, milliseconds):
        for _ in range(0, milliseconds, STEP_MS):
            await asyncio.sleep(0)
            self.clock.advance(STEP_MS)
        await asyncio.sleep(0)

    async def until(self, condition):
        for _ in range(0, UNTIL_MS, STEP_MS):
            if condition():
                return
            await self.pass_ms(STEP_MS)
        raise AssertionError("it did not happen")

    async def until_reachable(self, coordinator):
        await self.until(lambda: self.ensemble.lives(coordinator.session))

    def cut(self, coordinator):
        coordinator.is_reachable = False

    def lose_answers(self, coordinator):
        coordinator.loses_answers = True

    def heal(self, coordinator):
        coordinator.is_reachable = True
        coordinator.loses_answers = False


@pytest.fixture
def bench():
    return FakeBench()


class TestFakeCoordinator(CoordinatorContract):
    """The contract, in no time."""


async def test_a_lost_write_may_be_done_later(bench):
    one, other = await bench.connect(), await bench.connect()
    await one.commit(CreateEntry("/a"))
    one.write_delays = [5_000]
    outcome, _ = await asyncio.gather(
        one.commit(SetEntry("/a", b"late", 0)), bench.pass_ms(bench.session_ms)
    )
    assert outcome is WriteOutcome.UNKNOWN
    assert await other.read("/a") == CoordinatorEntry(b"", 0)
    await bench.pass_ms(1_000)
    assert await other.read("/a") == CoordinatorEntry(b"late", 1)


async def test_a_lost_write_may_never_be_done(bench):
    one = await bench.connect()
    one.write_delays = [None, 60_000]
    for path in ("/never", "/after-the-session"):
        outcome, _ = await asyncio.gather(
            one.commit(CreateEntry(path)), bench.pass_ms(bench.session_ms)
        )
        assert outcome is WriteOutcome.UNKNOWN
    bench.ensemble.expire(one.session)
    await bench.pass_ms(70_000)
    assert bench.ensemble.entries == {}


async def test_no_session_ends_while_all_servers_are_away(bench):
    one = await bench.connect()
    losses = Losses(one)
    await one.commit(CreateEntry("/live", b"", is_ephemeral=True))
    one.hold_lease("/live")
    bench.ensemble.is_away = True
    await bench.pass_ms(60_000)
    assert one.lease_until_ms < bench.now_ms()
    bench.ensemble.is_away = False
    await bench.pass_ms(bench.session_ms)
    assert (await one.read("/live")).owner == one.session
    assert losses.count == 0


async def test_a_delay_goes_from_the_lease(bench):
    one = await bench.connect()
    one.delay_ms = 200
    outcome, _ = await asyncio.gather(
        one.commit(CreateEntry("/live", b"", is_ephemeral=True)), bench.pass_ms(400)
    )
    assert outcome is WriteOutcome.DONE
    requested_ms = bench.now_ms()
    one.hold_lease("/live")
    await bench.pass_ms(395)
    assert one.lease_until_ms == 0
    await bench.pass_ms(5)
    assert one.lease_until_ms == requested_ms + bench.session_ms // 2


async def test_hints_that_are_lost_come_when_everything_is_read_again(bench):
    one, other = await bench.connect(), await bench.connect()
    hints = Hints()
    await bench.pass_ms(1_000)
    one.watch("/a", hints)
    one.loses_hints = True
    await one.read("/a")
    await other.commit(CreateEntry("/a"))
    await bench.pass_ms(1_000)
    assert hints.count == 0
    await bench.pass_ms(30_000)
    assert hints.count == 1
