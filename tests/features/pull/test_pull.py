"""Pulling from a queue beside its consumers, while the clock stands still."""

import random
from dataclasses import replace

import pytest

from leveret.core.settings.queue_settings import QueueSettings
from leveret.core.statistics.statistics import Statistics
from leveret.errors import ChannelError, NotEnoughCopiesError
from leveret.features.pull.pull import LEASES_MAX, Outcome, Pulls, Wanted
from leveret.features.pull.receipts import Receipt, parse_receipt
from leveret.ports import Durability
from tests.support.queue_bench import Bench, Consumer

DONE, STALE, INVALID = Outcome.DONE, Outcome.STALE, Outcome.INVALID


class Pulling(Bench):
    """A bench whose queue is pulled from."""

    def __init__(self, *arguments, **options):
        super().__init__(*arguments, **options)
        seed = random.Random(1)
        self.pulls = Pulls(
            self.turn, self.services.timers, lambda: str(seed.random()), Statistics()
        )

    @property
    def leases(self):
        return self.pulls.leases(self.queue)

    def ask(self, count=1, **wanted):
        """A receive, and where its answer will be."""
        answers = []
        receive = self.pulls.receive(self.queue, Wanted(count, **wanted), answers.append)
        self.run()
        return receive, answers

    def pull(self, count=1, **wanted):
        _, answers = self.ask(count, **wanted)
        (answer,) = answers
        return answer

    def handles(self, count=1, **wanted):
        return [one.handle for one in self.pull(count, **wanted)]


@pytest.fixture
def bench():
    bench = Pulling()
    yield bench
    assert bench.reported == []
    assert not bench.pulls.under_way


def offsets(pulled):
    return [parse_receipt(one.handle).offset for one in pulled]


def test_a_batch_is_received_and_settled(bench):
    bench.store(5, size=3)
    pulled = bench.pull(3)
    assert offsets(pulled) == [0, 1, 2]
    assert [one.message.body for one in pulled] == [b"xxx"] * 3
    assert not any(one.redelivered for one in pulled)
    assert (bench.queue.leased_count, bench.ready, bench.queue.consumer_count) == (3, 2, 0)
    handles = [one.handle for one in pulled]
    assert bench.leases.settle(handles[1:]) == [DONE, DONE]
    assert list(bench.log.settled) == [(1, 3)]
    assert bench.leases.settle(handles) == [DONE, STALE, STALE]
    assert bench.queue.leased_count == 0


def test_an_empty_queue_answers_at_once_who_does_not_wait(bench):
    assert bench.pull() == []
    assert bench.queue.consumer_count == 0


def test_who_waits_gets_what_comes(bench):
    receive, answers = bench.ask(10, wait_ms=20_000)
    bench.advance(15_000)
    assert (answers, bench.queue.consumer_count) == ([], 1)
    bench.store(2)
    bench.run()
    assert [offsets(answer) for answer in answers] == [[0, 1]]
    receive.cancel()
    assert bench.queue.leased_count == 2


def test_the_longest_wait_ends_with_nothing(bench):
    _, answers = bench.ask(wait_ms=20_000)
    bench.advance(20_000)
    assert (answers, bench.queue.consumer_count) == ([[]], 0)


def test_who_goes_away_holds_nothing(bench):
    receive, answers = bench.ask(wait_ms=20_000)
    receive.cancel()
    receive.cancel()
    bench.store(1)
    bench.run()
    assert (answers, bench.queue.consumer_count, bench.ready) == ([], 0, 1)
    bench.advance(30_000)
    assert answers == []


def test_nobody_waits_for_a_node_that_stops(bench):
    _, answers = bench.ask(wait_ms=20_000)
    bench.pulls.close()
    assert answers == [[]]
    assert bench.pull(wait_ms=20_000) == []


def test_what_is_not_committed_is_waited_for_a_little():
    bench = Pulling(Durability.FSYNC)
    bench.store(1)
    _, answers = bench.ask()
    assert answers == []
    bench.log.commit()
    bench.run()
    assert offsets(answers[0]) == [0]


def test_what_is_never_committed_is_not_waited_for_for_ever():
    bench = Pulling(Durability.FSYNC)
    bench.store(1)
    _, answers = bench.ask()
    bench.advance(1_000)
    assert answers == [[]]


def test_what_lacks_copies_is_not_waited_for():
    bench = Pulling(Durability.FSYNC)
    bench.store(1)
    bench.log.refuse(NotEnoughCopiesError("it needs 2 nodes in sync, and has 1"))
    assert bench.pull() == []


def test_time_that_is_over_gives_the_message_to_the_next(bench):
    bench.store(2)
    (first, _) = bench.handles(2, visibility_timeout_ms=1000)
    assert bench.leases.extend([first], 5000) == [DONE]
    bench.advance(1000)
    assert bench.ready == 1
    (again,) = bench.pull(2)
    assert (offsets([again]), again.redelivered) == ([1], True)
    assert bench.leases.settle([first]) == [DONE]
    assert list(bench.log.settled) == [(0, 1)]


def test_a_stale_handle_changes_nothing(bench):
    bench.store(1)
    (old,) = bench.handles(visibility_timeout_ms=1000)
    bench.advance(1000)
    (new,) = bench.handles()
    assert bench.leases.settle([old]) == [STALE]
    assert bench.leases.extend([old], 1) == [STALE]
    assert bench.leases.discard([old]) == [STALE]
    assert bench.leases.return_([old]) == [STALE]
    assert bench.queue.leased_count == 1
    assert bench.leases.settle([new, new]) == [DONE, STALE]


def test_no_handle_at_all(bench):
    bench.store(1)
    (handle,) = bench.handles()
    other = Pulling()
    other.queue.definition = replace(other.queue.definition, name="other")
    assert other.leases.settle([handle]) == [INVALID]
    for wrong in ("", "x" * 32, "é" * 32, handle[:-1], handle + "A", None, 7):
        assert bench.leases.settle([wrong]) == [INVALID]
    receipt = parse_receipt(handle)
    forged = Receipt(receipt.queue, receipt.offset, receipt.token ^ 1).text
    assert bench.leases.settle([forged]) == [STALE]


def test_nacks_come_back_now_or_later(bench):
    bench.store(2)
    first, second = bench.handles(2)
    assert bench.leases.return_([first]) == [DONE]
    assert bench.leases.return_([second], delay_ms=500) == [DONE]
    assert (bench.ready, bench.queue.delayed_count, bench.queue.leased_count) == (1, 1, 0)
    bench.advance(500)
    assert bench.ready == 2


def test_no_more_time_is_a_return(bench):
    bench.store(1)
    assert bench.leases.extend(bench.handles(), 0) == [DONE]
    assert bench.ready == 1


def test_what_is_given_up_is_dead_lettered():
    bench = Pulling(settings=QueueSettings(dead_letter_exchange="dlx"))
    bench.store(1)
    bench.leases.discard(bench.handles())
    assert bench.dead == [(0, "rejected")]


def test_timeouts_count_and_reach_the_limit():
    settings = QueueSettings(counts_deliveries=True, delivery_limit=1, dead_letter_exchange="dlx")
    bench = Pulling(settings=settings)
    bench.store(1)
    assert [one.return_count for one in bench.pull(visibility_timeout_ms=1)] == [0]
    bench.advance(1)
    assert [one.return_count for one in bench.pull(visibility_timeout_ms=1)] == [1]
    bench.advance(1)
    assert (bench.dead, bench.ready) == ([(0, "delivery_limit")], 0)


def test_the_queue_says_how_long_where_nobody_else_does():
    bench = Pulling(settings=QueueSettings(visibility_timeout_ms=70))
    bench.store(1)
    bench.pull()
    bench.advance(69)
    assert bench.ready == 0
    bench.advance(1)
    assert bench.ready == 1


@pytest.mark.covers("C-209")
def test_a_filter_leaves_the_rest_to_others(bench):
    for number in range(6):
        bench.store(1, priority=number, headers={"number": number})
    pulled = bench.pull(10, filter_sql="number > 3")
    assert offsets(pulled) == [4, 5]
    assert bench.pull(10, filter_sql="number > 3") == []
    assert offsets(bench.pull(10)) == [0, 1, 2, 3]


def test_who_waits_for_what_he_wants(bench):
    _, answers = bench.ask(filter_sql="wanted", wait_ms=1000)
    bench.store(1, headers={"wanted": False})
    bench.run()
    assert answers == []
    bench.store(1, headers={"wanted": True})
    bench.run()
    assert offsets(answers[0]) == [1]


def test_a_filter_that_finds_nothing_in_a_long_backlog(bench):
    for _ in range(5):
        bench.store(10_000, headers={"wanted": False})
    _, answers = bench.ask(filter_sql="wanted")
    bench.advance(20)
    assert answers == [[]]


def test_no_filters_where_there_are_groups():
    bench = Pulling(settings=QueueSettings(group_ordering=True))
    with pytest.raises(ChannelError, match="groups in order"):
        bench.ask(filter_tags="a")


def test_bytes_are_bounded_but_one_message_is_given(bench):
    bench.store(3, size=1000)
    assert offsets(bench.pull(3, bytes_max=1)) == [0]
    assert offsets(bench.pull(3, bytes_max=5000)) == [1, 2]


def test_turns_are_shared_with_consumers(bench):
    consumer = bench.consume(limit=100)
    got = []
    for _ in range(10):
        _, answers = bench.ask(wait_ms=10)
        bench.store(2)
        bench.run()
        got += offsets(answers[0])
    assert len(consumer.got) == len(got) == 10
    assert sorted(got + [offset for offset, _ in consumer.got]) == list(range(20))


def test_an_exclusive_consumer_shares_with_nobody(bench):
    bench.queue.add_consumer(Consumer(), exclusive=True)
    with pytest.raises(ChannelError, match="exclusive use"):
        bench.ask()


def test_a_deleted_queue_says_so(bench):
    bench.store(1)
    (handle,) = bench.handles(visibility_timeout_ms=1000)
    _, answers = bench.ask(wait_ms=1000)
    bench.queue.mark_deleted()
    assert answers == [None]
    assert bench.leases.settle([handle]) == [DONE]
    bench.advance(2000)


def test_a_restart_forgets_leases(bench):
    bench.store(2)
    first, second = bench.handles(2)
    bench.leases.settle([first])
    bench.reopen()
    assert bench.leases.settle([second]) == [STALE]
    assert offsets(bench.pull(5)) == [1]


def test_leases_are_bounded(bench):
    bench.store(1)
    bench.pulls.leases_of(bench.queue)._table.begin(
        range(10**6, 10**6 + LEASES_MAX), 1, bench.clock.now + 10**6
    )
    with pytest.raises(ChannelError, match="held by receipt"):
        bench.ask()


@pytest.mark.parametrize(
    "wanted",
    [
        {"count": 0},
        {"count": 1001},
        {"count": True},
        {"count": "1"},
        {"wait_ms": 20_001},
        {"wait_ms": -1},
        {"bytes_max": 0},
        {"visibility_timeout_ms": 0},
        {"visibility_timeout_ms": 43_200_001},
        {"filter_tags": "a &&"},
        {"filter_tags": 7},
        {"filter_sql": "= 1"},
    ],
)
def test_what_cannot_be_asked_for(wanted):
    with pytest.raises(ValueError, match=next(iter(wanted))):
        Wanted(**wanted)


@pytest.mark.parametrize("seed", range(30))
def test_whatever_happens_every_message_is_in_one_place(seed):
    """Receives, settlements, extensions and time at random, against what must hold."""
    rng = random.Random(seed)
    bench = Pulling()
    held, settled, published = {}, set(), 0  # held: offset -> (handle, end of its lease)
    for _ in range(300):
        now = bench.clock.now
        assert {o for o, (_, end) in held.items() if end > now} == set(held)
        match rng.randrange(6):
            case 0:
                bench.store(count := rng.randrange(1, 5))
                published += count
            case 1:
                term_ms = rng.randrange(1, 50)
                for one in bench.pull(rng.randrange(1, 6), visibility_timeout_ms=term_ms):
                    (offset,) = offsets([one])
                    assert offset not in held
                    assert offset not in settled
                    held[offset] = one.handle, now + term_ms
            case 2 if held:
                offset = rng.choice(sorted(held))
                assert bench.leases.settle([held.pop(offset)[0]]) == [DONE]
                settled.add(offset)
            case 3 if held:
                offset = rng.choice(sorted(held))
                term_ms = rng.randrange(1, 50)
                assert bench.leases.extend([held[offset][0]], term_ms) == [DONE]
                held[offset] = held[offset][0], now + term_ms
            case 4 if held:
                offset = rng.choice(sorted(held))
                delay_ms = rng.randrange(0, 20)
                assert bench.leases.return_([held.pop(offset)[0]], delay_ms) == [DONE]
            case 5:
                bench.advance(rng.randrange(0, 20))
                over = [o for o, (_, end) in held.items() if end <= bench.clock.now]
                handles = [held.pop(offset)[0] for offset in over]
                assert bench.leases.settle(handles) == [STALE] * len(handles)
        queue = bench.queue
        assert queue.leased_count == len(held)
        assert len(settled) + len(held) + queue.delayed_count + queue.message_count == published
