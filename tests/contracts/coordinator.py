"""Contract of every Coordinator, whatever it is made of.

`test_coordinator.py` runs it on the fake, `tests/cluster/coordination/test_zookeeper.py` on a real
ZooKeeper.
"""

import asyncio

import pytest

from leveret.ports.coordinator import (
    CheckEntry,
    CoordinatorEntry,
    CoordinatorRefusedError,
    CoordinatorUnavailableError,
    CreateEntry,
    DeleteEntry,
    SetEntry,
    WriteOutcome,
)

DONE, CONFLICT, UNKNOWN = WriteOutcome


class Hints:
    """Counts what a watch tells."""

    def __init__(self):
        self.count = 0

    def __call__(self):
        self.count += 1


class Losses(Hints):
    """Counts the sessions that a coordinator has lost."""

    def __init__(self, coordinator):
        super().__init__()
        coordinator.on_lost = self


class CoordinatorContract:
    """The fixture `bench` has all that differs between implementations.

    `connect()` returns the coordinator of another node; `pass_ms` lets time pass, and `until` as
    much as is needed; `cut`, `lose_answers` and `heal` are of one coordinator's connection;
    `now_ms` is the clock of leases, `session_ms` the length of a session.
    """

    async def test_versions_count_the_writes_of_an_entry(self, bench):
        one, other = await bench.connect(), await bench.connect()
        assert await one.read("/a") is None
        assert await one.commit(CreateEntry("/a", b"1")) is DONE
        assert await other.read("/a") == CoordinatorEntry(b"1", 0)
        assert await one.commit(SetEntry("/a", b"", 0)) is DONE
        assert await other.commit(SetEntry("/a", b"\0\xff", 1)) is DONE
        assert await one.read("/a") == CoordinatorEntry(b"\0\xff", 2)
        assert await one.commit(DeleteEntry("/a", 2)) is DONE
        assert await other.read("/a") is None
        assert await other.commit(CreateEntry("/a")) is DONE
        assert await one.read("/a") == CoordinatorEntry(b"", 0)

    @pytest.mark.parametrize(
        "operation",
        [
            CreateEntry("/a"),
            CreateEntry("/missing/a"),
            SetEntry("/a", b"new", 1),
            SetEntry("/missing", b"new", 0),
            DeleteEntry("/a", 1),
            DeleteEntry("/missing", 0),
            DeleteEntry("/parent", 0),
            CheckEntry("/a", 1),
            CheckEntry("/missing", 0),
        ],
        ids=str,
    )
    async def test_what_does_not_fit_is_a_conflict_and_nothing_is_done(self, bench, operation):
        one = await bench.connect()
        made = [CreateEntry("/a", b"a"), CreateEntry("/parent"), CreateEntry("/parent/child")]
        assert await one.commit(*made) is DONE
        assert await one.commit(operation) is CONFLICT
        both = [CreateEntry("/b"), SetEntry("/parent/child", b"new", 0)]
        assert await one.commit(both[0], operation, both[1]) is CONFLICT
        assert await one.read("/a") == CoordinatorEntry(b"a", 0)
        assert await one.read("/b") is None
        assert await one.read("/parent/child") == CoordinatorEntry(b"", 0)

    async def test_operations_are_done_together_each_on_what_those_before_it_left(self, bench):
        one = await bench.connect()
        assert await one.commit(CreateEntry("/epoch"), CreateEntry("/gone")) is DONE
        operations = [
            CheckEntry("/epoch", 0),
            CreateEntry("/a", b"1"),
            SetEntry("/a", b"2", 0),
            DeleteEntry("/gone", 0),
        ]
        assert await one.commit(*operations) is DONE
        assert await one.read("/a") == CoordinatorEntry(b"2", 1)
        assert await one.children("/gone") == []
        assert await one.commit(*operations) is CONFLICT

    async def test_children_are_sorted_names(self, bench):
        one = await bench.connect()
        assert await one.children("/nodes") == []
        await one.commit(CreateEntry("/nodes"), CreateEntry("/nodesx"))
        assert await one.children("/nodes") == []
        for name in ("9", "10", "a"):
            assert await one.commit(CreateEntry(f"/nodes/{name}")) is DONE
        await one.commit(CreateEntry("/nodes/a/deeper"))
        assert await one.children("/nodes") == ["10", "9", "a"]

    async def test_what_makes_no_sense_is_refused(self, bench):
        one = await bench.connect()
        assert await one.commit(CreateEntry("/live", b"", is_ephemeral=True)) is DONE
        with pytest.raises(CoordinatorRefusedError):
            await one.commit(CreateEntry("/live/child"))
        assert await one.children("/live") == []

    async def test_many_reads_at_once(self, bench):
        one = await bench.connect()
        await one.commit(CreateEntry("/shards"))
        for start in (0, 100):
            await one.commit(*(CreateEntry(f"/shards/{n}") for n in range(start, start + 100)))
        names = await one.children("/shards")
        found = await asyncio.gather(*(one.read(f"/shards/{name}") for name in names))
        assert found == [CoordinatorEntry(b"", 0)] * 200

    async def test_of_many_writers_one_wins(self, bench):
        nodes = [await bench.connect() for _ in range(3)]
        await nodes[0].commit(CreateEntry("/controller_epoch"))
        for version in range(5):
            writes = (node.commit(SetEntry("/controller_epoch", b"", version)) for node in nodes)
            assert sorted(map(str, await asyncio.gather(*writes))) == sorted(
                map(str, [DONE, CONFLICT, CONFLICT])
            )

    async def test_ephemeral_entries_go_with_the_session(self, bench):
        one, other = await bench.connect(), await bench.connect()
        assert one.session != other.session
        await one.commit(CreateEntry("/kept"), CreateEntry("/live", b"1", is_ephemeral=True))
        assert await other.read("/live") == CoordinatorEntry(b"1", 0, one.session)
        await one.close()
        assert await other.read("/live") is None
        assert await other.read("/kept") == CoordinatorEntry(b"", 0)

    # -- hints

    async def test_a_watch_tells_of_an_entry_that_was_read(self, bench):
        one, other = await bench.connect(), await bench.connect()
        hints = Hints()
        one.watch("/a", hints)
        for operation in (CreateEntry("/a"), SetEntry("/a", b"1", 0), DeleteEntry("/a", 1)):
            await one.read("/a")
            told = hints.count
            assert await other.commit(operation) is DONE
            await bench.until(lambda told=told: hints.count > told)

    async def test_a_watch_tells_of_children_that_were_read(self, bench):
        one, other = await bench.connect(), await bench.connect()
        hints = Hints()
        one.watch("/live", hints)
        for operation in (
            CreateEntry("/live"),
            CreateEntry("/live/1", b"", is_ephemeral=True),
            DeleteEntry("/live/1", 0),
        ):
            await one.children("/live")
            told = hints.count
            assert await other.commit(operation) is DONE
            await bench.until(lambda told=told: hints.count > told)

    async def test_several_may_watch_a_path_and_each_may_end_it(self, bench):
        one, other = await bench.connect(), await bench.connect()
        first, second = Hints(), Hints()
        end_first = one.watch("/a", first)
        one.watch("/a", second)
        await one.read("/a")
        await other.commit(CreateEntry("/a"))
        await bench.until(lambda: first.count and second.count)
        end_first()
        told = first.count
        await one.read("/a")
        seen = second.count
        await other.commit(SetEntry("/a", b"", 0))
        await bench.until(lambda: second.count > seen)
        assert first.count == told

    async def test_whoever_watches_is_told_once_the_connection_is_back(self, bench):
        one, other = await bench.connect(), await bench.connect()
        hints = Hints()
        one.watch("/a", hints)
        await one.read("/a")
        bench.cut(one)
        await other.commit(CreateEntry("/a"))
        await bench.pass_ms(bench.session_ms // 4)
        bench.heal(one)
        told = hints.count
        await bench.until(lambda: hints.count > told)
        await bench.until_reachable(one)
        assert await one.read("/a") is not None

    # -- the lease

    async def live(self, bench):
        """Return a node with a lease."""
        one = await bench.connect()
        assert one.lease_until_ms == 0
        assert await one.commit(CreateEntry("/live", b"1", is_ephemeral=True)) is DONE
        one.hold_lease("/live")
        await bench.until(lambda: one.lease_until_ms > bench.now_ms())
        return one

    async def test_a_lease_is_renewed_and_changes_nothing(self, bench):
        one, other = await self.live(bench), await bench.connect()
        before = one.lease_until_ms
        assert before <= bench.now_ms() + bench.session_ms // 2
        await bench.until(lambda: one.lease_until_ms > before + bench.session_ms)
        assert one.lease_until_ms <= bench.now_ms() + bench.session_ms // 2
        assert await other.read("/live") == CoordinatorEntry(b"1", 0, one.session)

    async def test_a_lease_is_over_before_the_others_miss_the_node(self, bench):
        one, other = await self.live(bench), await bench.connect()
        losses = Losses(one)
        bench.cut(one)
        while await other.read("/live") is not None:
            await bench.pass_ms(5)
        assert one.lease_until_ms < bench.now_ms()
        bench.heal(one)
        await bench.until(lambda: losses.count)
        assert one.lease_until_ms == 0

    async def test_a_lease_ends_when_answers_do_not_come(self, bench):
        one = await self.live(bench)
        bench.lose_answers(one)
        await bench.pass_ms(bench.session_ms // 2 + 10)
        assert one.lease_until_ms < bench.now_ms()

    async def test_closing_ends_the_lease_and_then_the_session(self, bench):
        one, other = await self.live(bench), await bench.connect()
        await one.close()
        assert one.lease_until_ms == 0
        assert await other.read("/live") is None

    async def test_a_session_without_its_entry_is_given_up(self, bench):
        one, other = await self.live(bench), await bench.connect()
        losses, session = Losses(one), one.session
        assert await other.commit(DeleteEntry("/live", 0)) is DONE
        await bench.until(lambda: losses.count)
        await bench.until_reachable(one)
        assert one.lease_until_ms == 0
        assert one.session not in {None, session}
        assert losses.count == 1

    async def test_another_sessions_entry_renews_nothing(self, bench):
        one, other = await self.live(bench), await bench.connect()
        losses = Losses(other)
        other.hold_lease("/live")
        await bench.until(lambda: losses.count)
        assert other.lease_until_ms == 0
        assert await one.read("/live") == CoordinatorEntry(b"1", 0, one.session)

    # -- sessions

    async def test_a_short_interruption_leaves_the_session(self, bench):
        one = await self.live(bench)
        losses, session, before = Losses(one), one.session, one.lease_until_ms
        bench.cut(one)
        await bench.pass_ms(bench.session_ms // 8)
        bench.heal(one)
        await bench.until(lambda: one.lease_until_ms > before + bench.session_ms // 4)
        assert (losses.count, one.session) == (0, session)
        assert (await one.read("/live")).owner == session

    async def test_a_new_session_has_nothing_of_the_old_one(self, bench):
        one, other = await self.live(bench), await bench.connect()
        losses, session = Losses(one), one.session
        bench.cut(one)
        while await other.read("/live") is not None:
            await bench.pass_ms(50)
        bench.heal(one)
        await bench.until(lambda: losses.count)
        await bench.until_reachable(one)
        assert await one.read("/live") is None
        assert one.session not in {None, session}
        await bench.pass_ms(700)
        assert one.lease_until_ms == 0
        assert await one.commit(CreateEntry("/live", b"2", is_ephemeral=True)) is DONE
        one.hold_lease("/live")
        await bench.until(lambda: one.lease_until_ms)
        assert await other.read("/live") is not None
        assert losses.count == 1

    async def test_without_a_connection_reads_fail_and_writes_are_unknown(self, bench):
        one, other = await bench.connect(), await bench.connect()
        bench.cut(one)
        results = await asyncio.gather(
            one.read("/a"),
            one.children("/a"),
            one.commit(CreateEntry("/a")),
            bench.pass_ms(bench.session_ms + 200),
            return_exceptions=True,
        )
        assert [type(error) for error in results[:2]] == [CoordinatorUnavailableError] * 2
        assert results[2] is UNKNOWN
        assert await other.read("/a") is None

    async def test_a_write_whose_answer_was_lost_is_settled_by_its_version(self, bench):
        one, other = await bench.connect(), await bench.connect()
        await one.commit(CreateEntry("/shard", b"old"))
        bench.lose_answers(one)
        outcome, _ = await asyncio.gather(
            one.commit(SetEntry("/shard", b"new", 0)), bench.pass_ms(bench.session_ms + 200)
        )
        assert outcome is UNKNOWN
        bench.heal(one)
        await bench.until_reachable(one)
        entry = await one.read("/shard")
        assert entry == CoordinatorEntry(b"new", 1)
        assert await one.commit(SetEntry("/shard", b"old", 0)) is CONFLICT
        assert await other.read("/shard") == entry
