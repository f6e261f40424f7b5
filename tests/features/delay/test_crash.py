"""Whenever a node dies, its delayed-message stores lose nothing that was confirmed."""

import random

import pytest

from leveret.errors import StorageError
from leveret.features.delay import due_index
from leveret.ports import Durability
from leveret.ports.definitions import INTERNAL
from leveret.storage.marks import RUN_KEY
from tests.features.delay.life import START, Disk, Life
from tests.support.clock import FakeClock

HOUR, DAY = 3_600_000, 86_400_000
DELAYS = [0, 5, 900, 1500, 20_000, 100_000, HOUR, 9 * HOUR, 2 * DAY]

NO_TIMEOUT = pytest.mark.timeout(3600)


@pytest.fixture
def disk():
    return Disk()


@pytest.fixture
def clock():
    return FakeClock(START)


@pytest.mark.covers("C-201")
async def test_all_that_waits_comes_in_its_time_after_a_stop_or_a_kill(disk, clock):
    for cleanly in (True, False):
        life = Life(disk, clock)
        for delay in DELAYS:
            life.add(delay, b"%d" % delay)
        await life.run()
        await life.end(cleanly=cleanly)
        handed = life.handed
        life = Life(disk, clock)
        await life.advance(3 * DAY)
        found = list(dict.fromkeys(handed + life.handed))  # the first may come twice
        assert found == [b"%d" % delay for delay in DELAYS]
        assert life.early == []
        await life.advance(60_000)
        assert life.store.pending_count == 0
        assert life.state.keys(due_index.PREFIX, b"due0")[1:] == []
        await life.end(cleanly=True)


@pytest.mark.covers("C-201")
async def test_far_records_are_in_the_index_and_come_through_all_its_buckets(disk, clock):
    life = Life(disk, clock)
    chance = random.Random(1)
    delays = sorted(chance.randrange(60_000, 9 * DAY) for _ in range(500))
    for delay in delays:
        life.add(delay, b"%d" % delay)
    await life.advance(5000)
    found = life.store.scan(None, None, 1000)
    assert [due for due, _ in found] == [START + delay for delay in delays]
    assert life.store.scan(found[99], found[200][0], 1000) == found[100:200]
    for days in (1, 2):
        await life.advance(days * DAY)
        await life.end(cleanly=days % 2 == 0)
        handed = life.handed
        life = Life(disk, clock)
        life.handed += handed
        found = life.store.scan(None, None, 1000)
        await life.run()
        assert len(found) == len(life.store.scan(None, None, 1000))
        assert len(found) + len(set(life.handed)) == 500
    await life.advance(9 * DAY)
    assert list(dict.fromkeys(life.handed)) == [b"%d" % delay for delay in delays]
    assert life.early == []
    await life.end(cleanly=True)


async def test_what_fired_before_it_was_written_never_touches_the_store(disk, clock):
    life = Life(disk, clock)
    await life.advance(3000)
    for number in range(20):
        life.add(100, b"%d" % number)
        await life.advance(500)
    await life.advance(5000)
    assert len(life.handed) == 20
    assert life.state.keys(b"", b"\xff") == [RUN_KEY]
    await life.end()


async def test_a_lost_store_is_made_anew_from_the_log(disk, clock):
    life = Life(disk, clock)
    for delay in DELAYS:
        life.add(delay, b"%d" % delay)
    await life.advance(3000)
    await life.end(cleanly=True)
    disk.pairs = []
    life = Life(disk, clock)
    await life.advance(3 * DAY)
    assert life.handed == [b"%d" % delay for delay in DELAYS if delay > 3000]
    await life.end()


async def test_a_store_that_tells_of_another_log_is_not_believed(disk, clock):
    life = Life(disk, clock)
    for number in range(10):
        life.add(HOUR + number, b"of another log")
    await life.advance(3000)
    await life.end()
    pairs, disk = disk.pairs, Disk()
    disk.pairs = pairs
    life = Life(disk, clock)
    life.add(2 * HOUR, b"later")
    await life.advance(HOUR + 60_000)
    assert life.handed == []
    await life.advance(HOUR)
    assert life.handed == [b"later"]
    await life.end()


async def test_an_index_entry_that_errs_makes_nothing_early_or_late(disk, clock):
    """A store brought back from a copy may tell other times than the log does."""
    life = Life(disk, clock)
    life.add(2 * HOUR, b"one")
    life.add(2 * HOUR, b"two")
    await life.advance(3000)
    [key] = [pair[0] for pair in life.state.scan(due_index.PREFIX) if len(pair[0]) > 30]
    await life.end()
    early = (START + HOUR).to_bytes(8, "little")
    disk.pairs = [(k, early + v[8:] if k == key else v) for k, v in disk.pairs]
    life = Life(disk, clock)
    await life.advance(2 * HOUR + 60_000)
    assert sorted(life.handed) == [b"one", b"two"]
    assert life.early == []
    await life.end()


async def test_a_store_that_takes_nothing_holds_up_nothing(disk, clock):
    life = Life(disk, clock)
    for delay in DELAYS:
        life.add(delay, b"%d" % delay)
    await life.run()

    async def refuse(changes):
        raise StorageError("no room")

    life.state.write_behind = refuse
    await life.advance(200_000)
    assert life.handed == [b"%d" % delay for delay in DELAYS if delay < 200_000]
    assert len(life.reported) == 1
    del life.state.write_behind
    await life.advance(3 * DAY)
    assert life.handed == [b"%d" % delay for delay in DELAYS]
    await life.end()


async def test_trouble_that_nobody_thought_of_does_not_end_the_room(disk, clock):
    life = Life(disk, clock)
    life.add(HOUR, b"one")
    await life.advance(5000)

    async def fail(*args):
        del life.state.fetch
        raise RuntimeError("a mistake of ours")

    life.state.fetch = fail
    with pytest.raises(RuntimeError):
        await life.advance(HOUR)
    await life.advance(HOUR)
    assert life.handed == [b"one"]
    await life.end()


async def test_a_deleted_room_leaves_nothing_in_the_store(disk, clock):
    life = Life(disk, clock)
    for delay in DELAYS:
        life.add(delay, b"%d" % delay)
    await life.advance(5000)
    life.add(HOUR, b"last")
    await life.run()
    life.stores.delete("/", "store", INTERNAL)
    await life.advance(3 * DAY)
    assert life.state.keys(b"", b"\xff") == [RUN_KEY]
    assert life.handed == [b"0", b"5", b"900", b"1500"]
    await life.end()


async def live(life: Life, chance: random.Random, names, known) -> None:
    """Adds, cancels, time that passes; `known` learns what was confirmed."""
    offsets = {}
    for _ in range(12):
        bodies = []
        for _ in range(chance.randrange(4)):
            body = b"%d" % next(names)
            delay = chance.choice(DELAYS)
            known.due[body] = life.clock.now + delay
            offsets[body] = life.add(delay, body)
            bodies.append(body)
        await life.run()
        if not life.fate.is_dead:
            known.confirmed.update(bodies)
        if offsets and chance.random() < 0.3:
            body = chance.choice(list(offsets))
            if life.store.cancel(offsets[body]):
                known.cancelled.add(body)
        await life.advance(chance.choice([0, 10, 1000, 2500, 30_000, HOUR]))


class Known:
    def __init__(self) -> None:
        self.due: dict[bytes, int] = {}
        self.confirmed: set[bytes] = set()
        self.cancelled: set[bytes] = set()
        self.handed: list[bytes] = []


@pytest.mark.parametrize("durability", [Durability.OS, Durability.FSYNC])
@pytest.mark.parametrize(
    "seeds", [range(6), pytest.param(range(6, 300), marks=[pytest.mark.soak, NO_TIMEOUT])]
)
async def test_a_kill_between_any_two_steps_loses_nothing(durability, seeds):
    """Several lives, each killed at some step; the last one hands out all that is left."""
    for seed in seeds:
        chance = random.Random(seed)
        disk, clock, known = Disk(), FakeClock(START), Known()
        names = iter(range(10_000))
        for _ in range(4):
            try:
                life = Life(disk, clock, durability, dies_at=chance.randrange(5, 120))
            except StorageError:
                continue  # it died while it started
            await live(life, chance, names, known)
            known.handed += life.handed
            assert len(set(life.handed)) == len(life.handed)
            assert life.early == []
            await life.end(machine=durability is Durability.FSYNC)
        life = Life(disk, clock, durability)
        await life.advance(3 * DAY)
        assert len(set(life.handed)) == len(life.handed)
        assert life.early == []
        missing = known.confirmed - known.cancelled - set(known.handed) - set(life.handed)
        assert missing == set(), seed
        in_order = [known.due[body] for body in life.handed]
        assert in_order == sorted(in_order)
        await life.advance(60_000)
        assert life.store.pending_count == 0
        assert life.store.scan(None, None, 10) == []
        assert life.state.keys(due_index.PREFIX, b"due0")[1:] == []
        await life.end(cleanly=True)
