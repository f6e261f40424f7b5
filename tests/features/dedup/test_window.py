"""The window of a queue: around appends, restarts, lost state and policies."""

from dataclasses import replace
from types import SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from leveret.core.feature_counters import FeatureCounters
from leveret.core.queues.queue import Queue
from leveret.core.queues.stream import Stream
from leveret.core.settings.queue_settings import QueueSettings
from leveret.core.timers import Timers
from leveret.errors import NotEnoughCopiesError, StorageError
from leveret.features.dedup import window as dedup_module
from leveret.features.dedup.extension import QueueWindows, window_of
from leveret.features.dedup.keys import text_key
from leveret.ports import Durability, Retention
from leveret.ports.definitions import QueueDefinition
from leveret.ports.records import RecordFlag
from leveret.storage.state import MemoryStateStore
from tests.support.examples import examples
from tests.support.queue_bench import Bench, Waiter, content_header
from tests.support.spawning import spawner

WINDOW = 10_000
DEDUP = QueueSettings(dedup_window_ms=WINDOW)


class FailingStateStore(MemoryStateStore):
    """A state store whose writes fail while it has an `error`."""

    error = None

    async def write_behind(self, changes):
        if self.error is not None:
            raise self.error
        await super().write_behind(changes)


class Window(Bench):
    """A bench whose queue has a window; `crash` begins another run."""

    def __init__(self, durability=Durability.OS, settings=DEDUP, keys_max=1000):
        super().__init__(durability, QueueSettings())
        self.state = FailingStateStore()
        self.keys_max = keys_max
        self.settings = settings
        self.definition = QueueDefinition("/", "q", incarnation="i1")
        self.extensions = self.services.extensions
        self.open()

    def open(self):
        self.services = replace(
            self.services,
            timers=Timers(self.clock.wall_ms, self.clock.call_later, self.clock.seconds),
            extensions=(*self.extensions, QueueWindows(self.core_services(), self.keys_max)),
        )
        self.queue = Queue(self.definition, self.settings, None, self.log, self.services)

    def core_services(self):
        return SimpleNamespace(
            state=self.state,
            spawn=spawner(self.tasks),
            timers=self.services.timers,
            report=lambda *report: self.reported.append(report),
            feature_counters=FeatureCounters(),
        )

    def send(self, *ids, flags=0):
        for name in ids:
            found, header = content_header(1, message_id=name)
            self.queue.builder.add(found | flags, self.clock.now, b"", b"q", header, b"x")
        self.queue.flush()

    def crash(self):
        for task in self.tasks:
            task.close()
        self.tasks.clear()
        self.queue.deleted = True
        window_of(self.queue)._timer.set(None)
        self.log.builder.clear()
        self.log.end = self.log.committed
        self.log.batches = [b for b in self.log.batches if b.stop_offset <= self.log.end]
        self.open()

    @property
    def stored(self):
        return self.log.end


@pytest.fixture
def bench():
    bench = Window()
    yield bench
    assert bench.reported == []


@pytest.mark.covers("C-207")
def test_a_duplicate_is_confirmed_and_not_stored(bench):
    bench.send("a", "b", "a")
    bench.send("b", "c")
    assert bench.stored == 3
    assert window_of(bench.queue).duplicates == 2
    waiter = Waiter()
    bench.queue.await_commit(waiter)
    assert waiter.fates == [False]


def test_what_has_no_key_is_stored_each_time(bench):
    for _ in range(3):
        bench.publish()
        bench.queue.flush()
    assert bench.stored == 3


def test_the_window_begins_with_the_message_that_was_stored(bench):
    bench.send("a")
    bench.advance(WINDOW - 1)
    bench.send("a")
    assert bench.stored == 1
    bench.advance(1)
    bench.send("a")
    assert bench.stored == 2


def test_dead_letters_are_not_checked(bench):
    bench.send("a")
    bench.send("a", flags=RecordFlag.DEAD_LETTERED)
    assert bench.stored == 2


@pytest.mark.covers("C-206")
def test_what_the_broker_puts_back_is_stored_and_not_counted_as_a_duplicate(bench):
    bench.send("a")
    bench.send("a", "a", flags=RecordFlag.PUT_BACK)
    assert bench.stored == 3
    assert window_of(bench.queue).duplicates == 0


def test_what_was_put_into_a_queue_that_had_not_seen_it_counts_as_seen(bench):
    bench.send("a", flags=RecordFlag.PUT_BACK)
    bench.send("a")
    assert bench.stored == 1
    assert window_of(bench.queue).duplicates == 1


def test_what_is_put_back_does_not_prolong_the_window(bench):
    bench.send("a")
    bench.advance(WINDOW - 1)
    bench.send("a", flags=RecordFlag.PUT_BACK)
    bench.advance(1)
    bench.send("a")
    assert bench.stored == 3


@pytest.mark.parametrize("is_saved", [False, True])
def test_a_copy_that_was_put_back_is_one_known_key_after_a_restart(bench, is_saved):
    bench.send("a")
    bench.advance(100)
    bench.send("a", "b", flags=RecordFlag.PUT_BACK)
    if is_saved:
        bench.advance(2000)
    seen = {name: window_of(bench.queue).seen_ms(text_key(name)) for name in (b"a", b"b")}
    bench.crash()
    bench.run()
    assert {name: window_of(bench.queue).seen_ms(text_key(name)) for name in (b"a", b"b")} == seen
    assert window_of(bench.queue).key_count == 2
    bench.send("a", "b")
    assert bench.stored == 3


def test_a_duplicate_is_not_confirmed_before_its_original():
    bench = Window(Durability.FSYNC)
    bench.send("a")
    waiter = Waiter()
    found, header = content_header(1, message_id="a")
    bench.queue.builder.add(found, bench.clock.now, b"", b"q", header, b"x")
    bench.queue.await_commit(waiter)
    bench.queue.flush()
    assert waiter.fates == []
    bench.log.commit()
    assert waiter.fates == [False]


def test_a_duplicate_waits_for_no_copies_where_its_original_did_not():
    few, waiters = NotEnoughCopiesError("it needs 2 nodes in sync, and has 1"), []
    bench = Window(Durability.FSYNC)

    def send(name):
        waiters.append(Waiter())
        bench.publish(message_id=name)
        bench.queue.await_commit(waiters[-1])
        bench.queue.flush()

    send("committed")
    bench.log.commit()
    send("a")
    bench.log.refuse(few)
    for name in ("a", "b", "a", "committed"):
        send(name)
    assert [waiter.fates for waiter in waiters] == [[False], *[[True]] * 5]
    bench.log.refuse(None)
    send("a")
    bench.log.commit()
    assert waiters[-1].fates == [False]
    assert (bench.stored, window_of(bench.queue).duplicates) == (2, 4)
    assert [error for _, error in bench.reported] == [few]


def test_what_could_not_be_stored_may_come_again():
    bench = Window(Durability.FSYNC)
    bench.send("a")
    bench.log.commit()
    bench.send("b")
    bench.log.fail(StorageError("gone"))
    bench.log.append_error = StorageError("full")
    bench.send("c")
    bench.log.append_error = None
    bench.send("a", "b", "c")
    assert bench.stored == 3
    assert window_of(bench.queue).duplicates == 1


def test_a_message_that_was_refused_may_come_again():
    settings = QueueSettings(dedup_window_ms=WINDOW, max_length=1, overflow="reject-publish")
    bench = Window(settings=settings)
    bench.send("a")
    bench.run()
    bench.send("b")
    assert bench.stored == 1
    bench.queue.purge()
    bench.send("b", "a")
    assert bench.stored == 2


@pytest.mark.covers("C-207")
def test_a_restart_forgets_nothing_whether_it_was_written_down_or_not(bench):
    bench.send("a")
    bench.advance(2000)
    bench.send("b")
    bench.queue.purge()
    bench.crash()
    waiter = Waiter()
    found, header = content_header(1, message_id="b")
    bench.queue.builder.add(found, bench.clock.now, b"", b"q", header, b"x")
    bench.queue.await_commit(waiter)
    bench.queue.flush()
    assert waiter.fates == []  # nothing is said before it is known what was seen
    bench.run()
    assert waiter.fates == [False]
    bench.send("a")
    assert bench.stored == 2
    bench.advance(2000)
    assert bench.log.kept_from == 0
    bench.advance(WINDOW)
    assert bench.log.kept_from == 2  # both have expired


def test_keys_that_were_written_together_stay_until_the_last_of_them_expires(bench):
    bench.send("a")
    bench.advance(900)
    bench.send("b")
    bench.advance(100)  # both are written
    bench.advance(WINDOW - 101)
    bench.crash()
    bench.run()
    bench.send("b")
    assert bench.stored == 2
    bench.send("a")
    assert bench.stored == 3


def test_lost_state_is_learned_anew_from_the_log():
    bench = Window()
    bench.send("a")
    bench.advance(WINDOW)
    bench.send("b")
    bench.advance(2000)
    bench.state = FailingStateStore()
    bench.log.first = 1  # what comes before was removed
    bench.crash()
    bench.run()
    bench.send("a", "b")
    assert bench.stored == 3
    assert [str(error)[:40] for _, error in bench.reported] == [
        "the keys of its de-duplication window we"
    ]


@pytest.mark.parametrize("is_settled", [False, True])
def test_damage_is_passed_over_and_reported(is_settled):
    bench = Window()
    for name in "abc":
        bench.send(name)
    bench.run()
    if is_settled:
        bench.queue.purge()
    bench.log.damaged.add(1)
    bench.crash()
    bench.run()
    bench.send("a", "c")
    assert bench.stored == 3
    bench.send("b")
    assert bench.stored == 4
    found = "no message is lost, but the disk did not keep what was written. The damaged bytes"
    assert bench.lost()[0].startswith(found if is_settled else "messages lost: 1 (at offset 1)")


def test_a_policy_begins_and_ends_a_window(bench):
    bench.queue.reconfigure(QueueSettings())
    bench.run()
    bench.send("a")
    bench.queue.reconfigure(DEDUP)
    bench.run()
    bench.send("a", "a")
    assert bench.stored == 2
    bench.advance(2000)
    assert bench.state.scan(b"dedup/")
    bench.queue.reconfigure(QueueSettings())
    bench.run()
    assert bench.state.scan(b"dedup/") == []
    assert bench.log.kept_from is None
    bench.send("a")
    assert bench.stored == 3


def test_a_deleted_queue_leaves_nothing(bench):
    bench.send("a")
    bench.advance(2000)
    bench.queue.mark_deleted()
    bench.run()
    assert bench.state.scan(b"dedup/") == []


@pytest.mark.covers("C-207")
def test_memory_is_bounded_and_nothing_is_forgotten_early():
    bench = Window(keys_max=10)
    for n in range(10):
        bench.send(*(f"{n}.{i}" for i in range(5)))
        bench.advance(500)
    bench.advance(1000)
    assert window_of(bench.queue).key_count <= 10
    bench.send(*(f"{n}.{i}" for n in range(10) for i in range(5)))
    assert bench.stored == 50
    bench.crash()
    bench.run()
    bench.send(*(f"{n}.{i}" for n in range(10) for i in range(5)))
    assert bench.stored == 50
    bench.advance(WINDOW)
    bench.advance(2000)
    assert [key for key, _ in bench.state.scan(b"dedup/i1/k/")] == []
    assert [key for key, _ in bench.state.scan(b"dedup/")] == [b"dedup/i1/mark"]
    bench.send("0.0")
    assert bench.stored == 51


def test_a_state_store_that_fails_is_tried_again():
    bench = Window()
    bench.state.error = StorageError("full")
    bench.send("a")
    bench.advance(1000)
    assert bench.lost() == ["full"]
    assert bench.log.kept_from == 0
    bench.state.error = None
    bench.advance(1000)
    assert bench.state.scan(b"dedup/")


def test_a_queue_that_is_not_kept_remembers_in_memory_only():
    bench = Window()
    bench.definition = QueueDefinition("/", "q", durable=False, incarnation="i1")
    bench.crash()
    bench.send("a", "a")
    bench.advance(2000)
    assert bench.stored == 1
    assert bench.state.scan(b"") == []
    bench.advance(WINDOW)
    assert window_of(bench.queue).key_count == 0


@pytest.mark.covers("C-207")
def test_a_stream_drops_duplicates_too():
    bench = Window()
    bench.queue = Stream(
        bench.definition,
        QueueSettings(retention=Retention(), dedup_window_ms=WINDOW),
        bench.log,
        bench.services,
    )
    bench.send("a", "b", "a")
    bench.send("b")
    assert bench.stored == 2


EVENTS = st.lists(
    st.one_of(
        st.tuples(st.just("send"), st.lists(st.integers(0, 9), min_size=1, max_size=5)),
        st.tuples(st.just("time"), st.integers(1, WINDOW)),
        st.tuples(st.just("commit"), st.just(0)),
        st.tuples(st.just("fail"), st.just(0)),
        st.tuples(st.just("crash"), st.just(0)),
        st.tuples(st.just("purge"), st.just(0)),
    ),
    max_size=40,
)


@pytest.mark.covers("C-207")
@settings(max_examples=examples(200))
@given(EVENTS, st.integers(1, 6))
def test_each_message_is_stored_once_within_its_window(events, keys_max):
    bench = Window(Durability.FSYNC, keys_max=keys_max)
    stored = []  # (key, time, offset) of all that is in the log
    for kind, value in events:
        if kind == "send":
            end = bench.log.end
            bench.send(*map(str, value))
            for key in value:
                if not any(k == key and t + WINDOW > bench.clock.now for k, t, _ in stored):
                    stored.append((key, bench.clock.now, end))
                    end += 1
            assert bench.log.end == end
        elif kind == "time":
            bench.advance(value)
        elif kind == "commit":
            bench.log.commit()
        elif kind == "purge":
            bench.queue.purge()
        else:
            if kind == "crash":
                bench.crash()
            else:
                bench.log.fail(StorageError("gone"))
            stored = [each for each in stored if each[2] < bench.log.committed]
        bench.run()
    assert {str(error) for _, error in bench.reported} <= {"gone"}
    assert dedup_module.SAVE_DELAY_MS < WINDOW
