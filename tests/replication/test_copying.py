"""Frames to one follower: what goes into them, and how much is under way."""

import pytest

from leveret.ports.replication import LogFiles, LogPlace, RawBatches
from leveret.replication.attaching import Comparison, Difference
from leveret.replication.copying import FollowerCopy
from leveret.replication.effects import ReadLog, Send
from leveret.replication.limits import ReplicationLimits
from leveret.replication.messages import Append, Drop

EPOCH = 3
LIMITS = ReplicationLimits(frame_bytes_max=1000, window_bytes_max=3000)


@pytest.fixture
def copy():
    copy = FollowerCopy(node=2, incarnation=7, number=1, limits=LIMITS)
    copy.begin(Comparison((), {}), now_ms=0, since_ms=0)
    return copy


def end(position, offset=0):
    return LogPlace(0, 0, position), offset


def sent(copy, ends):
    """Read for the copy until it sends no more; return the frames. Logs end as `ends` say."""
    frames, effects = [], copy.send(EPOCH)
    while effects:
        frames += [effect.message for effect in effects if isinstance(effect, Send)]
        reads = [effect for effect in effects if isinstance(effect, ReadLog)]
        for read in reads:
            size = min(ends[read.log] - read.place.position, read.bytes_max)
            stop = read.place._replace(position=read.place.position + size)
            copy.read(RawBatches(bytearray(size), stop, 0))
        effects = copy.send(EPOCH) if reads else []
    return frames


def test_logs_that_wait_together_share_a_frame(copy):
    ends = {"one": 50, "two": 70, "three": 10}
    for log, size in ends.items():
        copy.wrote(log, end(0), end(size), now_ms=0)
    [frame] = sent(copy, ends)
    assert [operation.log for operation in frame.operations] == list(ends)


def test_a_log_with_much_to_send_takes_turns_with_others(copy):
    copy.wrote("long", end(0), end(1500), now_ms=0)
    copy.wrote("short", end(0), end(10), now_ms=0)
    first, second = sent(copy, {"long": 1500, "short": 10})
    assert [operation.log for operation in first.operations] == ["long"]
    assert [operation.log for operation in second.operations] == ["short", "long"]


def test_no_more_than_the_window_is_under_way(copy):
    copy.wrote("long", end(0), end(10_000), now_ms=0)
    frames = sent(copy, {"long": 10_000})
    assert [frame.frame for frame in frames] == [1, 2, 3]
    copy.acknowledged(1)
    assert [frame.frame for frame in sent(copy, {"long": 10_000})] == [4]


def test_what_is_written_while_a_log_is_read_is_read_behind(copy):
    copy.wrote("one", end(0), end(50), now_ms=0)
    [read] = copy.send(EPOCH)
    copy.wrote("one", end(50), end(80), now_ms=1)
    copy.read(RawBatches(bytearray(50), read.place._replace(position=50), 0))
    [frame] = sent(copy, {"one": 80})
    assert [len(operation.data) for operation in frame.operations] == [50, 30]
    copy.acknowledged(1)
    assert not copy.unsafe
    assert copy.unsafe_since() is None


def test_a_log_is_safe_up_to_the_frame_that_was_acknowledged(copy):
    copy.wrote("one", end(0), end(50), now_ms=4)
    sent(copy, {"one": 50})
    copy.wrote("one", end(50), end(80), now_ms=9)
    sent(copy, {"one": 80})
    assert copy.unsafe_since() == 4
    copy.acknowledged(1)
    assert copy.unsafe["one"].safe == end(50)
    assert copy.unsafe_since() == 9
    assert copy.take_moved() == ["one"]
    assert copy.take_moved() == []


def test_nothing_is_sent_of_a_log_that_was_deleted(copy):
    copy.wrote("one", end(0), end(50), now_ms=0)
    [read] = copy.send(EPOCH)
    copy.removed(Drop("one"), now_ms=0)
    copy.read(RawBatches(bytearray(50), read.place._replace(position=50), 0))
    [frame] = sent(copy, {})
    assert frame.operations == (Drop("one"),)


def test_nothing_is_sent_of_a_log_that_was_deleted_while_logs_were_compared():
    copy = FollowerCopy(node=2, incarnation=7, number=1, limits=LIMITS)
    copy.removed(Drop("one"), now_ms=0)
    ours = LogFiles("one", ((0, 0),), (), *end(50))
    lacks = Difference("one", removed=((0, 3),), copied=((0, 4),))
    copy.begin(Comparison((lacks,), {"one": ours}), now_ms=0, since_ms=0)
    [frame] = sent(copy, {})
    assert frame.operations == (Drop("one"),)
    copy.acknowledged(1)
    assert not copy.unsafe
    assert copy.unsafe_since() is None


def test_no_compacted_file_is_sent_of_a_log_that_was_deleted(copy):
    copy.replaced("one", (0, 0), 1001, now_ms=0)
    copy.replaced("one", (5, 0), 1002, now_ms=0)
    [_] = copy.send(EPOCH)
    copy.removed(Drop("one"), now_ms=0)
    copy.read(RawBatches(bytearray(50), LogPlace(0, 1001, 50), 3))
    [frame] = sent(copy, {})
    assert frame.operations == (Drop("one"),)


def test_many_removals_take_several_frames(copy):
    for number in range(40):
        copy.removed(Drop(str(number)), now_ms=0)
    frames = sent(copy, {})
    assert len(frames) == 3
    assert sum(len(frame.operations) for frame in frames) == 40


def test_the_end_of_a_file_that_was_reached_before_needs_no_frame(copy):
    before = LogPlace(0, 0, 50), 9
    copy.wrote("one", before, (LogPlace(9), 9), now_ms=0)
    [read] = copy.send(EPOCH)
    assert read.place == before[0]
    copy.read(RawBatches(bytearray(), LogPlace(9), 9))
    assert copy.send(EPOCH) == []
    assert copy.take_moved() == ["one"]
    assert not copy.unsafe


def test_an_append_names_the_place_that_it_was_read_from(copy):
    copy.wrote("one", end(20), end(50), now_ms=0)
    [frame] = sent(copy, {"one": 50})
    assert frame.operations == (Append("one", LogPlace(0, 0, 20), bytearray(30)),)


@pytest.mark.parametrize(
    "stop", [LogPlace(0, 0, 200), LogPlace(2, 0, 0)], ids=["same file", "next file"]
)
@pytest.mark.parametrize("is_acknowledged", [False, True])
def test_what_is_read_before_it_is_told_is_sent_once(copy, stop, is_acknowledged):
    def appended(effects):
        frames = [effect.message for effect in effects if isinstance(effect, Send)]
        return [(each.place, len(each.data)) for frame in frames for each in frame.operations]

    copy.wrote("log", end(0), end(100, 1), now_ms=0)
    assert len(copy.send(EPOCH)) == 1
    copy.read(RawBatches(bytearray(200), stop, 2))  # a second batch was written meanwhile
    assert appended(copy.send(EPOCH)) == [(end(0)[0], 100)]
    if is_acknowledged:
        copy.acknowledged(copy.sent)
    copy.wrote("log", end(100, 1), end(200, 2), now_ms=1)
    [reading] = copy.send(EPOCH)
    assert (reading.place, reading.offset) == end(100, 1)
    copy.read(RawBatches(bytearray(100), end(200)[0], 2))
    assert appended(copy.send(EPOCH)) == [(end(100)[0], 100)]
    copy.acknowledged(copy.sent)
    assert copy.unsafe == {}


@pytest.mark.parametrize("is_sent", [False, True])
def test_a_new_log_of_a_deleted_ones_name_is_safe_once_its_own_bytes_are(copy, is_sent):
    copy.wrote("one", end(0), end(500), now_ms=0)
    if is_sent:
        sent(copy, {"one": 500})
    else:
        assert len(copy.send(EPOCH)) == 1
        copy.read(RawBatches(bytearray(500), *end(500)))
    copy.removed(Drop("one"), now_ms=1)
    copy.wrote("one", end(0), end(200), now_ms=2)
    if is_sent:
        copy.acknowledged(1)
        assert copy.take_moved() == []
        assert copy.unsafe["one"].safe == end(0)
    [frame] = sent(copy, {"one": 200})
    assert frame.operations[-2:] == (Drop("one"), Append("one", end(0)[0], bytearray(200)))
    copy.wrote("one", end(200), end(300), now_ms=3)
    copy.acknowledged(copy.sent)
    assert copy.unsafe["one"].safe == end(200)
    sent(copy, {"one": 300})
    copy.acknowledged(copy.sent)
    assert copy.unsafe == {}
