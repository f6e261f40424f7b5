"""Copies of a log: what a follower has is what its leader has, whatever ends in between."""

import errno
from contextlib import suppress
from random import Random

import pytest

from leveret.cluster.transactions.numbers import TransactionNumber
from leveret.errors import CorruptBatchError, StorageError
from leveret.ports import Durability, Retention
from leveret.ports.replication import StreamRun
from tests.storage.replication_harness import Pair, drawn_bodies

BOTH = pytest.mark.parametrize("durability", [Durability.FSYNC, Durability.OS])


@pytest.fixture
def pair(request):
    pair = Pair(getattr(request, "param", Durability.FSYNC))
    yield pair
    pair.end()


@pytest.mark.parametrize("pair", [Durability.FSYNC, Durability.OS], indirect=True)
def test_records_are_committed_once_both_have_them(pair):
    pair.put(b"a", b"b")
    pair.work()
    assert pair.leader.log.committed == 0
    while pair.fetch():
        pass
    pair.work()
    pair.fetch()
    assert pair.leader.log.committed == 2
    pair.quiesce()
    pair.check_equal()
    assert pair.follower.records() == {0: b"a", 1: b"b"}
    assert pair.confirmed == {0: b"a", 1: b"b"}


@pytest.mark.parametrize("pair", [Durability.FSYNC, Durability.OS], indirect=True)
def test_a_follower_of_an_empty_log_is_told_its_state_once(pair):
    assert pair.fetch() > 0
    assert [pair.fetch() for _ in range(3)] == [0, 0, 0]
    pair.put(b"a")
    assert pair.fetch() > 0
    pair.quiesce()
    pair.check_equal()
    assert pair.follower.records() == {0: b"a"}


def restarted(pair, number):
    """Return a replica that was ended and has begun to flush what it has found."""
    replica = pair.replicas[number]
    replica.stop()
    replica.start()
    assert replica.log.is_flushing
    return replica


def test_what_is_copied_while_another_flush_runs_counts_behind_it(pair):
    pair.put(b"a")
    pair.quiesce()
    follower = restarted(pair, 1)
    pair.follow()
    pair.fetch()
    assert follower.log.stream_durable == 0
    follower.committer.drain()
    assert follower.log.stream_durable == follower.log.stream_position == pair.leader.log.stream_end


def test_the_stream_of_a_leader_is_durable_after_the_flush_with_which_it_began(pair):
    pair.put(b"a")
    pair.quiesce()
    leader = restarted(pair, 0)
    leader.log.lead(2)
    assert leader.log.stream_durable == 0
    leader.committer.drain()
    assert leader.log.stream_durable == leader.log.stream_end


def unflushed(pair):
    """Return a follower that was ended before it had flushed two records, and has found them."""
    pair.put(b"a", b"b")
    pair.quiesce()
    follower = pair.follower
    follower.stop()
    for content in follower.files.files.values():
        content.device.clear()
        content.dirty.append((0, len(content.cached)))
    follower.start()
    assert follower.log.is_flushing
    return follower


def reopened(pair, replica):
    """Close and open the log of a replica."""
    pair.loop.run_until_complete(replica.log.close())
    replica.open()
    return replica.log


def test_a_log_that_could_not_flush_what_it_had_is_of_use_once_it_is_opened_again(pair):
    follower = unflushed(pair)
    failed = follower.log
    follower.files.fail_at = follower.files.calls + 1
    follower.committer.drain()
    assert failed.failure is not None
    assert (failed.end, failed.durable) == (2, 0)
    log = reopened(pair, follower)
    assert failed.is_closed
    follower.committer.drain()
    assert (log.failure, log.end, log.durable) == (None, 2, 2)
    follower.stop(kept_bytes=0)  # the page cache goes: what counts as durable is on the device
    follower.start()
    follower.committer.drain()
    pair.follow()
    assert follower.log.end == 2
    pair.put(b"c")
    pair.quiesce()
    pair.check_equal()
    assert follower.records() == {0: b"a", 1: b"b", 2: b"c"}


@pytest.mark.parametrize("after", range(1, 9))
def test_a_log_is_opened_again_whatever_fails_meanwhile(pair, after):
    follower = unflushed(pair)
    follower.files.fail_at = follower.files.calls + 1
    follower.committer.drain()
    follower.files.fail_at = follower.files.calls + after
    pair.loop.run_until_complete(follower.log.close())
    with suppress(StorageError):
        follower.open()
        follower.committer.drain()
    while follower.log.is_closed or follower.log.failure is not None:
        if not follower.log.is_closed:
            pair.loop.run_until_complete(follower.log.close())
        follower.open()
        follower.committer.drain()
    assert (follower.log.end, follower.log.durable) == (2, 2)
    follower.stop(kept_bytes=0)
    follower.start()
    assert follower.log.end == 2


class Scenario:
    """One seed: what clients do to the leader, what the follower fetches, and what fails."""

    def __init__(self, seed: int) -> None:
        self.draw = draw = Random(seed)
        self.number = 0
        self.decided: dict[int, tuple[bool, list[bytes], list[tuple[int, int]]]] = {}
        self.prepared: dict[int, tuple[list, list[bytes], list[tuple[int, int]]]] = {}
        keeps = draw.random() < 0.2
        self.pair = Pair(
            draw.choice([Durability.FSYNC, Durability.OS]),
            retention=Retention(bytes_max=2000, keeps_settled=True) if keeps else None,
            is_encrypted=draw.random() < 0.15,
        )
        self.settled: set[int] = set()

    def run(self, steps: int = 120) -> None:
        draw = self.draw
        for _ in range(steps):
            kinds = [self.put] * 6 + [self.settle] * 4 + [self.come_back] * 2 + [self.fetch] * 10
            kinds += [self.work] * 6 + [self.write_settlements] * 3 + [self.prepare] * 2
            kinds += [self.decide] * 3 + [self.fill_a_disk] + [self.end_follower] + [self.take_over]
            draw.choice(kinds)()
        self.check()

    # -- what clients do

    def put(self) -> None:
        self.number += 1
        self.pair.put(*drawn_bodies(self.draw, self.number))

    def drawn_ranges(self) -> list[tuple[int, int]]:
        self.pair.advance()
        log = self.pair.leader.log
        taken = {
            offset
            for _, _, ranges in [*self.prepared.values(), *self.decided.values()]
            for first, stop in ranges
            for offset in range(first, stop)
        }
        free = [
            offset
            for first, stop in log.settled.gaps(0, log.committed)
            for offset in range(first, stop)
            if offset not in taken
        ]
        if not free:
            return []
        first = self.draw.choice(free)
        stop = first + 1
        while stop in free and self.draw.random() < 0.7:
            stop += 1
        return [(first, stop)]

    def settle(self) -> None:
        ranges = self.drawn_ranges()
        if ranges:
            self.pair.leader.log.settle(ranges)
            self.pair.leader.log.returns.forget(ranges)

    def come_back(self) -> None:
        log = self.pair.leader.log
        for first, stop in self.drawn_ranges():
            for offset in range(first, stop):
                times = log.returns.acquired.get(offset, 0) + 1
                log.returns.put(offset, offset + 1, times, 0)
            log.note_returns([(first, stop)])

    def write_settlements(self) -> None:
        self.draw.choice(self.pair.replicas).log.write_settlements()

    def prepare(self) -> None:
        self.number += 1
        bodies = drawn_bodies(self.draw, self.number) if self.draw.random() < 0.8 else []
        ranges = self.drawn_ranges() if self.draw.random() < 0.6 else []
        if bodies or ranges:
            transaction, told = self.pair.prepare(bodies, ranges)
            self.prepared[transaction] = told, bodies, ranges

    def decide(self) -> None:
        """Decide what is prepared everywhere; the decision is safe, and the log may be told."""
        ready = [each for each, (told, _, _) in self.prepared.items() if told]
        if not ready:
            return
        transaction = self.draw.choice(ready)
        told, bodies, ranges = self.prepared.pop(transaction)
        commits = told == [None] and self.draw.random() < 0.7
        self.decided[transaction] = commits, bodies, ranges
        if commits:
            self.pair.decisions.committed.add(transaction)
        self.pair.leader.log.resolve(transaction, committed=commits)

    # -- what nodes do

    def fetch(self) -> None:
        self.pair.fetch(self.draw.choice([1, 300, 2000]), is_lost=self.draw.random() < 0.15)

    def work(self) -> None:
        each = self.draw.choice(self.pair.replicas)
        if each.committer.waiting:
            each.committer.step()
        self.pair.advance()

    def fill_a_disk(self) -> None:
        each = self.pair.follower
        each.files.fail_at = each.files.calls + self.draw.randint(1, 3)
        each.files.error = errno.ENOSPC
        with suppress(StorageError, ExceptionGroup):
            self.pair.fetch(2000)
        each.files.fail_at = None

    def end(self, number: int) -> None:
        """End a node, and start it again."""
        each = self.pair.replicas[number]
        is_machine = self.pair.durability is Durability.FSYNC and self.draw.random() < 0.5
        each.stop(kept_bytes=self.draw.choice([0, 50, 400]) if is_machine else None)
        each.start()

    def end_follower(self) -> None:
        self.end(self.pair.follower.number)
        self.pair.follow()

    def take_over(self) -> None:
        """End the leader, or not; the other one leads."""
        pair = self.pair
        new = pair.follower.number
        if self.draw.random() < 0.7:
            self.end(1 - new)
        self.prepared.clear()  # their coordinator gives up, as it is told nothing
        pair.elect(new)

    def check(self) -> None:
        pair = self.pair
        pair.quiesce()
        for transaction in list(pair.leader.log._unresolved):
            if transaction in self.prepared:
                pair.leader.log.resolve(transaction, committed=False)
        pair.quiesce()
        pair.check_equal()
        log, found = pair.leader.log, pair.leader.records()
        for offset, body in pair.confirmed.items():
            if offset in log.settled:
                continue
            assert found[offset] == body, f"offset {offset} has changed"
        bodies = set(found.values())
        for transaction, (commits, written, ranges) in self.decided.items():
            if not commits:
                assert not bodies & set(written), f"{transaction} was aborted"
            else:
                assert all(log.settled.contains(*each) for each in ranges), transaction
                lost = set(written) - bodies - self.settled_bodies()
                assert not lost, f"{transaction} was committed, and {lost} is not there"
        for each in pair.replicas:  # what is on the disk says the same
            before = each.records(), list(each.log.settled)
            each.log.write_settlements()
            each.stop()
            each.start()
            assert (each.records(), list(each.log.settled)) == before

    def settled_bodies(self) -> set[bytes]:
        log = self.pair.leader.log
        return {body for offset, body in self.pair.confirmed.items() if offset in log.settled}


@pytest.mark.parametrize("first", range(0, 400, 20))
def test_copies_stay_equal(first):
    for seed in range(first, first + 20):
        scenario = Scenario(seed)
        try:
            scenario.run()
        except BaseException:
            print(f"seed {seed}")
            raise
        scenario.pair.end()


def test_what_does_not_follow_is_refused(pair):
    pair.put(b"a")
    pair.put(b"b")
    pair.put(b"c")
    log, follower = pair.leader.log, pair.follower.log
    whole = pair.loop.run_until_complete(log.read_stream(0, None, 10_000))
    behind = pair.loop.run_until_complete(log.read_stream(2, None, 10_000))
    damaged = bytearray(whole.data)
    damaged[-1] ^= 1
    for data, epoch, why in [
        (behind.data, 1, "offset 2 where 0 follows"),
        (whole.data, 0, "epoch 1 at offset 0 follows 0"),
    ]:
        with pytest.raises(CorruptBatchError, match=why):
            follower.append_stream(StreamRun(data, 1), epoch)
        assert (follower.stream_position, follower.end) == (None, 0)
    with pytest.raises(CorruptBatchError, match="batch"):
        follower.append_stream(StreamRun(whole.data[:-1], 1), 1)
    with pytest.raises(CorruptBatchError, match="checksum"):
        follower.append_stream(StreamRun(damaged, 1), 1)
    assert follower.end == 2  # and the rest comes again
    follower.append_stream(whole, 1)
    assert follower.end == 3
    assert follower.stream_position == log.stream_end


def test_what_waits_for_replicas_fails_where_another_node_leads(pair):
    _, told = pair.prepare([b"a"], [])
    pair.work()
    assert told == []
    pair.fetch()
    pair.elect(1)
    assert [str(error) for error in told] == [
        "another node leads the log in /data/topics/%2F/orders~~i1/0"
    ]


def test_a_part_is_prepared_once_both_have_it(pair):
    transaction, told = pair.prepare([b"a"], [])
    pair.work()
    pair.fetch()
    assert told == []
    pair.work()
    pair.fetch()
    assert told == [None]
    pair.decisions.committed.add(transaction)
    pair.leader.log.resolve(transaction, committed=True)
    pair.leader.log.write_settlements()
    pair.leader.log.flush()
    pair.work()
    assert transaction in pair.decisions.committed  # the follower may have to ask yet
    pair.quiesce()
    assert transaction not in pair.decisions.committed
    pair.elect(1)
    assert pair.leader.records() == {0: b"a"}


@pytest.mark.parametrize("pair", [Durability.FSYNC, Durability.OS], indirect=True)
@pytest.mark.parametrize("sent", [[b"b"], []])
def test_a_part_is_prepared_once_a_leader_without_followers_has_it(pair, sent):
    log = pair.leader.log
    log.on_progress(lambda: log.replicated_to(log.stream_durable))
    pair.put(b"a")
    pair.quiesce()
    _, told = pair.prepare(sent, [(0, 1)])
    pair.leader.committer.drain()
    assert told == [None]


def part_prepared_on_both(pair, ranges=()):
    transaction, told = pair.prepare([b"a"], list(ranges))
    pair.quiesce()
    assert told == [None]
    return transaction


def test_an_outcome_is_shown_and_told_once_both_have_it(pair):
    transaction, log, told = part_prepared_on_both(pair), pair.leader.log, []
    pair.decisions.committed.add(transaction)
    log.resolve(transaction, committed=True, told=told.append)
    pair.work()
    assert (told, log.committed) == ([], 0)
    pair.quiesce()
    assert (told, log.committed) == ([None], 1)


def test_what_only_settles_is_told_once_both_have_it(pair):
    pair.put(b"m")
    pair.quiesce()
    transaction, prepared = pair.prepare([], [(0, 1)])
    pair.quiesce()
    assert prepared == [None]
    told, log = [], pair.leader.log
    log.settle([(0, 1)])
    log.resolve(transaction, committed=True, told=told.append)
    pair.work()
    assert told == []
    pair.quiesce()
    assert told == [None]


@pytest.mark.parametrize("is_written", [False, True])
def test_an_outcome_that_one_node_has_is_not_told(pair, is_written):
    transaction, log, told = part_prepared_on_both(pair), pair.leader.log, []
    log.resolve(transaction, committed=True, told=told.append)
    if is_written:
        pair.work()
    pair.elect(1)  # the decision was on the disk of the other node alone
    pair.work()
    assert [type(error) for error in told] == [StorageError]
    pair.quiesce()
    assert pair.leader.records() == {}


def test_a_part_that_was_given_up_while_it_waited_is_never_prepared(pair):
    transaction, told = pair.prepare([b"a"], [])
    pair.work()
    pair.leader.log.resolve(transaction, committed=False)
    pair.quiesce()
    assert [str(error) for error in told] == [
        "the log in /data/topics/%2F/orders~~i1/0 has given up a transaction"
    ]
    assert pair.leader.records() == {}


def test_a_part_that_was_given_up_between_two_leaderships_is_never_prepared(pair):
    _, told = pair.prepare([b"a"], [])  # its flush has not run
    pair.elect(0)
    pair.quiesce()
    assert [type(error) for error in told] == [StorageError]
    assert pair.leader.records() == {}


def test_a_log_that_follows_leaves_outcomes_to_its_leader(pair):
    transaction = part_prepared_on_both(pair)
    log, told = pair.leader.log, []
    pair.decisions.committed.add(transaction)
    log.follow()
    log.resolve(transaction, committed=False, told=told.append)
    assert transaction in log._unresolved
    assert [type(error) for error in told] == [StorageError]
    pair.elect(1)
    pair.quiesce()
    assert pair.leader.records() == pair.follower.records() == {0: b"a"}


def part_of_cluster(pair, sent, ranges=()):
    """Prepare a part that others decide about."""
    pair.transactions = iter([TransactionNumber(3, 7, 11).pack()])
    transaction, told = pair.prepare(sent, list(ranges))
    pair.quiesce()
    assert told == [None]
    return transaction


@pytest.mark.parametrize("committed", [True, False])
def test_a_new_leader_leaves_to_others_what_they_decide(pair, committed):
    pair.put(b"settled", b"kept")
    pair.quiesce()
    transaction = part_of_cluster(pair, [b"a"], [(0, 1)])
    pair.put(b"behind")
    pair.quiesce()
    pair.elect(1)
    pair.quiesce()
    log = pair.leader.log
    assert (log.undecided, log.committed, list(log.settled)) == ([transaction], 2, [])
    log.resolve(transaction, committed=committed)
    assert log.undecided == []
    pair.quiesce()
    bodies = {body.decode() for body in pair.leader.records().values()}
    assert bodies == ({"kept", "a", "behind"} if committed else {"settled", "kept", "behind"})
    assert log.committed == log.end


def test_a_part_is_there_until_all_have_its_outcome(pair):
    transaction = part_of_cluster(pair, [b"a"])
    log = pair.leader.log
    assert log.has_part(transaction)
    log.resolve(transaction, committed=True)
    assert log.committed == 1  # the decision is safe elsewhere
    log.write_settlements()
    log.flush()
    pair.work()
    assert log.has_part(transaction)
    pair.quiesce()
    assert not log.has_part(transaction)


def test_a_log_with_a_hole_ends_before_it(pair):
    """Of two segments that were not flushed, the machine's death leaves the beginnings."""
    pair.put(b"a")  # its flush has begun, and has not run
    pair.put(b"b" * 600)
    second = pair.put(b"c", b"c" * 800)
    third = pair.put(b"d" * 500)
    leader = pair.leader
    assert [segment.base for segment in leader.log.segments][-2:] == [second, third]
    leader.committer.step()  # with the directory, so the names of all files are on the disk
    leader.stop(kept_bytes=400)
    leader.start()
    assert leader.log.end == second
    assert not leader.log.settled
    assert leader.log.epochs.last == 1


def test_what_is_copied_of_the_stream_counts_once_it_is_flushed(pair):
    transaction, _ = pair.prepare([b"a"], [])
    pair.quiesce()
    log, follower = pair.leader.log, pair.follower
    pair.decisions.committed.add(transaction)
    log.resolve(transaction, committed=True)
    log.write_settlements()
    before = follower.log.stream_durable
    assert pair.fetch() > 0
    assert follower.log.stream_position == log.stream_end > before
    assert follower.log.stream_durable == before
    follower.committer.drain()
    assert follower.log.stream_durable == log.stream_end


def test_a_follower_takes_no_appends(pair):
    log = pair.follower.log
    log.builder.add(1, 0, b"", b"q", b"header", b"body")
    with pytest.raises(StorageError, match="another node leads"):
        log.append()
    assert log.end == 0
    assert log.builder.count == 0


def test_who_leads_again_reads_what_it_copied_meanwhile(pair):
    for leader in (0, 1, 0):
        pair.elect(leader)
        pair.put(b"%d" % leader)
        pair.quiesce()
    log = pair.leader.log
    found = log.read(0, 1000)
    assert [record[6] for batch in found for record in batch.records()] == [b"0", b"1", b"0"]
