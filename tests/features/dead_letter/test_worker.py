"""Records that cannot be read when they are given up."""

import pytest

from leveret.core.settings.discard_reasons import Reason
from leveret.core.settings.queue_settings import QueueSettings
from leveret.errors import StorageError
from leveret.features.dead_letter import worker
from leveret.features.dead_letter.worker import RETRY_MS
from tests.support.queue_bench import Bench


@pytest.fixture
def bench():
    """A queue whose first batch has the records 0 and 1, and the second one 2; all are leased."""
    bench = Bench(settings=QueueSettings(dead_letter_exchange="dlx"))
    bench.store(2)
    bench.store(1)
    for _ in range(3):
        bench.queue.get()
    bench.log.at_hand = False
    return bench


def test_a_record_that_is_lost_holds_up_no_other(bench):
    bench.log.damaged = {0}
    bench.queue.discard([(0, 3)])
    bench.run()
    assert bench.dead == [(2, "rejected")]
    assert bench.queue.leased_count == 0
    assert bench.lost()


def test_a_device_that_fails_for_a_while_loses_nothing(bench):
    bench.log.fetch_error = StorageError("no answer")
    bench.queue.discard([(0, 3)])
    bench.run()
    assert (bench.lost(), bench.dead) == (["no answer"], [])
    bench.log.fetch_error = None
    bench.advance(RETRY_MS)
    assert bench.dead == [(0, "rejected"), (1, "rejected"), (2, "rejected")]


def test_what_was_set_aside_comes_back_while_a_lost_record_is_looked_for(bench):
    bench.log.damaged = {2}
    bench.queue.discard([(2, 3)])
    discarded = bench.queue._discarded
    discarded._aside = [worker.DeadRange(0, 2, Reason.REJECTED)]
    bench.queue.retry_dead_letters()
    bench.run()
    assert bench.dead == [(0, "rejected"), (1, "rejected")]
    assert bench.queue.leased_count == 0


def test_an_exchange_that_is_taken_away_lets_what_waits_vanish(bench):
    bench.queue.discard([(0, 3)])
    bench.queue.reconfigure(QueueSettings())
    bench.run()
    assert (bench.dead, bench.queue.leased_count) == ([], 0)


def test_a_deleted_queue_gives_up_nothing_more(bench):
    bench.queue.discard([(0, 3)])
    bench.queue.mark_deleted()
    bench.run()
    assert bench.dead == []


def test_large_messages_go_a_portion_at_a_time(bench, monkeypatch):
    monkeypatch.setattr(worker, "PORTION_BYTES", 1)
    bench.log.at_hand = True
    bench.queue.discard([(0, 3)])
    bench.queue.retry_dead_letters()  # does not hurry it
    assert bench.dead == [(0, "rejected")]
    bench.advance(0)
    assert bench.dead == [(0, "rejected"), (1, "rejected"), (2, "rejected")]
    assert bench.queue.leased_count == 0


def test_a_queue_deleted_between_two_portions_gives_up_nothing_more(bench, monkeypatch):
    monkeypatch.setattr(worker, "PORTION_BYTES", 1)
    bench.log.at_hand = True
    bench.queue.discard([(0, 3)])
    bench.queue.mark_deleted()
    bench.advance(1)
    assert [offset for offset, _ in bench.dead] == [0]
