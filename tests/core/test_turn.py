"""The order of a turn, and that nobody's fault in it is another's."""

import pytest

from leveret.core.turn import (
    INLINE_TURNS_MAX,
    MADE_TOGETHER_MAX,
    PARKED_NS_MAX,
    PUBLISHERS_FEW,
    SEARCH_NS_MAX,
    SINGLE_READS_MIN,
    TOUCHED_TOGETHER_MAX,
    TouchedQueue,
    Turn,
)
from leveret.ports.records import BatchBuilder

MANY = MADE_TOGETHER_MAX + 1


class Loop:
    def __init__(self):
        self.scheduled = []
        self.reported = []
        self.now_ns = 0
        self.turn = Turn(
            self.scheduled.append, lambda *report: self.reported.append(report), lambda: self.now_ns
        )

    def run(self):
        (callback,) = self.scheduled
        self.scheduled.clear()
        callback()


class Queue(TouchedQueue):
    def __init__(self, name, events, pumps=0):
        self.name, self.events, self.pumps = name, events, pumps
        self.on_flush = self.on_pump = lambda: None

    def flush(self):
        self.events.append(f"flush {self.name}")
        self.on_flush()

    def pump(self):
        self.events.append(f"pump {self.name}")
        self.on_pump()
        self.pumps -= 1
        return self.pumps >= 0


class Sender:
    touched = False

    def __init__(self, events, name=""):
        self.events = events
        self.name = name

    def send_pending(self):
        self.events.append(f"send {self.name}".rstrip())


@pytest.fixture
def loop():
    return Loop()


def test_all_is_flushed_then_pumped_then_sent(loop):
    events = []
    loop.turn.touch_sender(Sender(events))
    for name in "ab":
        loop.turn.touch(Queue(name, events))
    loop.run()
    assert events == ["flush a", "flush b", "pump a", "pump b", "send"]
    assert loop.scheduled == []


def test_touching_often_counts_once(loop):
    events = []
    queue, sender = Queue("a", events), Sender(events)
    for _ in range(3):
        loop.turn.touch(queue)
        loop.turn.touch_sender(sender)
    assert len(loop.scheduled) == 1
    loop.run()
    assert events == ["flush a", "pump a", "send"]
    loop.turn.touch(queue)
    loop.run()
    assert events == ["flush a", "pump a", "send", "flush a", "pump a"]


def test_what_is_touched_during_a_turn_comes_in_the_next(loop):
    events = []
    queue, other = Queue("a", events), Queue("b", events)
    queue.on_flush = lambda: loop.turn.touch(other)
    loop.turn.touch(queue)
    loop.run()
    assert events == ["flush a", "pump a"]
    loop.run()
    assert events == ["flush a", "pump a", "flush b", "pump b"]


def test_a_queue_that_is_alone_in_its_turn_may_know(loop):
    served, events = [], []
    one, other = (Queue(name, events) for name in "ab")
    for queue in (one, other):
        queue.on_flush = lambda: served.append(loop.turn.serves_one)
    loop.turn.touch(one)
    loop.run()
    assert served == [True]
    for queue in (one, other):
        loop.turn.touch(queue)
    loop.run()
    loop.turn.touch(one)
    loop.turn.begin_read()
    loop.turn.end_read(True)
    loop.run()
    assert served == [True, False, False, False]
    loop.turn.touch(one)
    loop.turn.flush_queue(one)  # in the middle of somebody's read
    assert served[4:] == [False]


def test_a_sender_touched_by_a_delivery_sends_in_the_same_turn(loop):
    events = []
    queue = Queue("a", events)
    queue.on_flush = lambda: loop.turn.touch_sender(Sender(events))
    loop.turn.touch(queue)
    loop.run()
    assert events == ["flush a", "pump a", "send"]


@pytest.mark.parametrize("publishers", [1, PUBLISHERS_FEW, PUBLISHERS_FEW + 1])
def test_few_publishers_are_sent_their_confirms_behind_the_deliveries(loop, publishers):
    events = []
    queue, consumer = Queue("a", events), Sender(events, "delivery")
    confirmed = [Sender(events, "confirm") for _ in range(publishers)]
    queue.on_flush = lambda: [loop.turn.touch_sender(each) for each in confirmed]
    queue.on_pump = lambda: loop.turn.touch_sender(consumer)
    loop.turn.touch(queue)
    loop.run()
    sent = [event for event in events if event.startswith("send")]
    assert sent.index("send delivery") == (0 if publishers <= PUBLISHERS_FEW else publishers)


def test_a_queue_with_more_to_deliver_takes_turns_with_others(loop):
    events = []
    loop.turn.touch(Queue("long", events, pumps=2))
    loop.turn.touch(Queue("short", events))
    loop.run()
    loop.run()
    loop.run()
    assert [event for event in events if event.startswith("pump")] == [
        "pump long",
        "pump short",
        "pump long",
        "pump long",
    ]
    assert loop.scheduled == []


def test_who_waits_is_pumped_first_and_the_longest_before_all(loop):
    events = []
    for name, passed_over_in in (("a", 0), ("b", 9), ("c", 3), ("d", 0), ("e", 5)):
        queue = Queue(name, events)
        queue.passed_over_in = passed_over_in
        loop.turn.touch(queue)
    loop.run()
    assert [event for event in events if event.startswith("pump")] == [
        f"pump {name}" for name in "cebad"
    ]


def test_each_pump_has_a_number_of_its_own(loop):
    numbers = []
    queues = [Queue(name, []) for name in "ab"]
    for queue in queues:
        queue.pump = lambda: numbers.append(loop.turn.pump_number)
        loop.turn.touch(queue)
    loop.turn.flush_queue(queues[1])
    loop.run()
    assert numbers == sorted(set(numbers))


def test_catching_up_is_done_at_once_and_only_for_what_was_touched(loop):
    events = []
    asked, other, idle = (Queue(name, events) for name in ("asked", "other", "idle"))
    loop.turn.touch(other)
    loop.turn.touch(asked)
    for queue in (asked, idle, asked):
        loop.turn.flush_queue(queue)
    assert events == ["flush asked", "pump asked"]
    loop.run()
    assert events[2:] == ["flush other", "pump other"]
    loop.turn.touch(asked)
    loop.run()
    assert events[4:] == ["flush asked", "pump asked"]


def test_who_catches_up_has_time_of_its_own():
    now_ns = 10 * SEARCH_NS_MAX  # long after the last turn
    turn = Turn(lambda _callback: None, lambda *_report: None, lambda: now_ns)
    over = []
    queue = Queue("a", [])
    queue.pump = lambda: over.append(turn.is_over())
    turn.touch(queue)
    turn.flush_queue(queue)
    assert over == [False]


def test_who_caught_up_and_has_more_goes_on_in_the_turn(loop):
    events = []
    queue = Queue("a", events, pumps=1)
    loop.turn.touch(queue)
    loop.turn.flush_queue(queue)
    loop.run()
    assert events == ["flush a", "pump a"] * 2


def test_a_fault_met_while_catching_up_is_the_queues(loop):
    queue = Queue("a", [])
    queue.pump = lambda: 1 / 0
    loop.turn.touch(queue)
    loop.turn.flush_queue(queue)
    assert [subject for subject, _ in loop.reported] == [queue]


def test_a_deleted_queue_is_not_pumped(loop):
    events = []
    queue = Queue("a", events)
    queue.deleted = True
    loop.turn.touch(queue)
    loop.run()
    assert "pump a" not in events


@pytest.mark.parametrize("step", ["flush", "pump", "send_pending"])
def test_one_subjects_fault_is_reported_and_nobody_elses(loop, step, monkeypatch):
    events = []
    broken = Sender(events) if step == "send_pending" else Queue("broken", events)

    def fail():
        raise ZeroDivisionError

    monkeypatch.setattr(broken, step, fail)
    (loop.turn.touch_sender if step == "send_pending" else loop.turn.touch)(broken)
    loop.turn.touch(Queue("a", events))
    loop.turn.touch_sender(Sender(events))
    loop.run()
    assert [subject for subject, _ in loop.reported] == [broken]
    assert [event for event in events if "broken" not in event] == ["flush a", "pump a", "send"]
    loop.turn.touch(Queue("b", events))
    loop.run()
    assert events[-1] == "pump b"


def read(loop, queue, *, more=False):
    loop.turn.begin_read()
    loop.turn.touch(queue)
    loop.turn.end_read(more=more)


def test_reads_of_one_pass_share_a_turn(loop):
    events = []
    for name in "abc":
        read(loop, Queue(name, events))
    assert events == []
    loop.run()
    assert events[:3] == ["flush a", "flush b", "flush c"]


def grow_lonely(loop, events):
    for _ in range(SINGLE_READS_MIN):
        read(loop, Queue("a", events))
        loop.run()
    events.clear()


def test_lone_reads_are_worked_off_at_once(loop):
    events = []
    grow_lonely(loop, events)
    read(loop, Queue("a", events))
    assert events == ["flush a", "pump a"]
    assert loop.scheduled == []


def test_company_is_noticed_within_some_turns(loop):
    events = []
    grow_lonely(loop, events)
    for _ in range(INLINE_TURNS_MAX):
        read(loop, Queue("a", events))
    events.clear()
    read(loop, Queue("a", events))
    read(loop, Queue("b", events))
    assert events == []
    loop.run()
    assert events == ["flush a", "flush b", "pump a", "pump b"]
    read(loop, Queue("a", events))
    assert len(loop.scheduled) == 1


def test_a_flood_is_not_worked_off_within_its_read(loop):
    events = []
    grow_lonely(loop, events)
    read(loop, Queue("a", events), more=True)
    assert events == []
    loop.run()
    assert events == ["flush a", "pump a"]


class Gathering(Queue):
    """A queue that waits for a number of turns."""

    def __init__(self, name, events, turns):
        super().__init__(name, events)
        self.may_gather = True
        self.turns = turns

    def gathers(self):
        self.turns -= 1
        return self.turns >= 0


def test_a_queue_may_gather_while_a_publisher_has_more(loop):
    events = []
    gathering = Gathering("a", events, 1)
    loop.turn.touch(Queue("b", events))
    read(loop, gathering, more=True)
    loop.run()
    assert events == ["flush b", "pump b"]
    assert gathering.touched
    loop.turn.begin_read()
    loop.turn.end_read(more=True)
    loop.run()
    assert events == ["flush b", "pump b", "flush a", "pump a"]
    assert not loop.scheduled


def test_a_queue_gathers_no_longer_than_the_publisher_has_more(loop):
    events = []
    read(loop, Gathering("a", events, 99), more=True)
    loop.run()
    assert events == []
    loop.run()
    assert events == ["flush a", "pump a"]


def test_a_gathering_queue_is_flushed_for_whoever_asks(loop):
    events = []
    gathering = Gathering("a", events, 99)
    read(loop, gathering, more=True)
    loop.run()
    loop.turn.flush_queue(gathering)
    assert events == ["flush a", "pump a"]
    loop.run()
    assert events == ["flush a", "pump a"]


def test_what_a_lone_turn_touches_again_is_scheduled(loop):
    events = []
    grow_lonely(loop, events)
    read(loop, Queue("a", events, pumps=1))
    assert events == ["flush a", "pump a"]
    loop.run()
    assert events == ["flush a", "pump a", "flush a", "pump a"]


def test_reads_that_touch_nothing_are_no_company(loop):
    events = []
    for _ in range(SINGLE_READS_MIN):
        loop.turn.begin_read()
        loop.turn.end_read(more=False)
        read(loop, Queue("a", events))
        loop.run()
    assert loop.turn.has_single_reader


def test_a_turn_that_takes_long_leaves_searches_to_the_next_which_begins_with_them(loop):
    events = []

    class Slow(Queue):
        def __init__(self, *arguments, **options):
            super().__init__(*arguments, **options)
            self.searches = self.name != "d"

        def pump(self):
            loop.now_ns += SEARCH_NS_MAX + 1
            return super().pump()

    queues = [Slow(name, events, pumps=9) for name in "abcd"]
    for queue in queues:
        loop.turn.touch(queue)
    for _ in range(4):
        loop.run()
    pumped = [event.removeprefix("pump ") for event in events if event.startswith("pump")]
    assert [name for name in pumped if name != "d"] == ["a", "b", "c", "a"]
    assert pumped.count("d") == 4  # what needs no search is delivered in each
    assert events[:4] == [f"flush {name}" for name in "abcd"]  # what is written waits for nobody


def test_what_is_touched_again_while_it_waits_keeps_its_place(loop):
    events = []
    a, b = Queue("a", events), Queue("b", events)
    b.searches = True

    def touch_b():
        loop.now_ns += SEARCH_NS_MAX + 1
        loop.turn.touch(b)
        return False

    a.pump = touch_b
    loop.turn.touch(a)
    loop.turn.touch(b)
    loop.run()
    loop.run()
    assert events == ["flush a", "flush b", "flush b", "pump b"]
    assert not loop.scheduled


def packed(loop, events, count=MANY, *, flush_ns=PARKED_NS_MAX + 1):
    """The builders of so many queues, a flush of each of which takes so long."""
    builders = [BatchBuilder(Queue(str(number), events)) for number in range(count)]

    def take_time():
        loop.now_ns += flush_ns

    for builder in builders:
        builder.owner.on_flush = take_time
    return builders


def test_of_many_queues_a_turn_flushes_some_and_pumps_what_it_flushed(loop):
    events = []
    builders = packed(loop, events, flush_ns=PARKED_NS_MAX // 2)
    loop.turn.touch_packed(builders)
    loop.run()
    assert events == ["flush 0", "flush 1", "flush 2", "pump 0", "pump 1", "pump 2"]
    loop.run()
    assert events[6:9] == ["flush 3", "flush 4", "flush 5"]
    while loop.scheduled:
        loop.run()
    assert [event for event in events if "flush" in event] == [f"flush {i}" for i in range(MANY)]
    assert len(events) == 2 * MANY
    assert not any(builder.parked or builder.owner.touched for builder in builders)


def test_few_queues_are_flushed_in_their_turn(loop):
    events = []
    assert not loop.turn.touch_packed(packed(loop, events, MANY - 1))
    loop.run()
    assert len(events) == 2 * (MANY - 1)
    assert not loop.scheduled


@pytest.mark.parametrize(
    ("count", "never_written", "large", "parks"),
    [
        (TOUCHED_TOGETHER_MAX, 0, False, False),
        (TOUCHED_TOGETHER_MAX, 1, False, True),
        (TOUCHED_TOGETHER_MAX + 1, 0, False, True),
        (2, 0, True, True),
    ],
)
def test_queues_are_parked_whose_flush_takes_long(loop, count, never_written, large, parks):
    """Those that have files take microseconds, and make no reader wait for another turn."""
    events = []
    builders = packed(loop, events, count)
    for builder in builders[never_written:]:
        builder.add(0, 0, b"", b"key", bytes(14), b"")
        builder.seal(0)
    assert bool(loop.turn.touch_packed(builders, large=large)) == parks
    loop.run()
    assert (len(events) < 2 * count) == parks


def test_what_others_touch_is_flushed_beside_parked_queues(loop):
    events = []
    loop.turn.touch_packed(packed(loop, events))
    loop.run()
    loop.turn.touch(Queue("other", events))
    loop.run()
    assert events[2:] == ["flush other", "flush 1", "pump other", "pump 1"]


def test_a_parked_queue_is_not_touched_by_what_happens_to_it(loop):
    events = []
    builders = packed(loop, events)
    loop.turn.touch_packed(builders)
    loop.turn.touch(builders[-1].owner)
    loop.run()
    assert events == ["flush 0", "pump 0"]


def test_who_packs_into_few_parked_queues_has_them_flushed_in_the_turn(loop):
    events = []
    builders = packed(loop, events)
    loop.turn.touch_packed(builders)
    assert not loop.turn.touch_packed([builders[-1]])
    assert not builders[-1].parked
    loop.run()
    assert [event for event in events if "flush" in event] == [f"flush {MANY - 1}", "flush 0"]


def test_who_packs_into_many_waits_until_his_are_flushed_and_no_longer(loop):
    events = []
    builders = packed(loop, events)
    first = loop.turn.touch_packed(builders)
    assert first
    builders[0].parked = False  # as the reader leaves it that has packed into it
    second = loop.turn.touch_packed([*builders, *packed(loop, events, 1)])
    assert builders[0].parked
    for _ in range(MANY):
        assert not loop.turn.is_flushed(first)
        loop.run()
    assert loop.turn.is_flushed(first)
    assert not loop.turn.is_flushed(second)
    loop.run()
    assert loop.turn.is_flushed(second)
    assert not loop.scheduled


def test_who_catches_up_with_a_parked_queue_does_not_wait(loop):
    events = []
    builders = packed(loop, events)
    loop.turn.touch_packed(builders)
    loop.turn.flush_queue(builders[5].owner)
    assert events == ["flush 5", "pump 5"]
    assert not builders[5].parked
    while loop.scheduled:
        loop.run()
    assert len(events) == 2 * MANY


def test_many_that_are_touched_already_are_flushed_in_this_turn(loop):
    events = []
    builders = packed(loop, events)
    for builder in builders:
        loop.turn.touch(builder.owner)
    assert not loop.turn.touch_packed(builders)
    loop.run()
    assert len(events) == 2 * MANY


def test_a_read_that_parks_is_followed_by_a_turn(loop):
    for reads in range(3 * SINGLE_READS_MIN):
        events = []
        builders = packed(loop, events)
        loop.turn.begin_read()
        loop.turn.touch_packed(builders)
        loop.turn.end_read(more=False)
        while loop.scheduled:
            loop.run()
        assert len(events) == 2 * MANY, reads


def test_at_the_end_all_is_flushed_at_once(loop):
    events = []
    builders = packed(loop, events)
    builders[3].owner.on_flush = lambda: 1 / 0
    loop.turn.touch_packed(builders)
    loop.turn.flush_parked()
    assert events == [f"flush {i}" for i in range(MANY)]
    assert [subject for subject, _ in loop.reported] == [builders[3].owner]
    loop.run()
    assert not loop.scheduled
