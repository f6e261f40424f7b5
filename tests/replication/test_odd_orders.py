"""Orders of events, and words of peers, that each have broken an invariant once."""

import pytest

from leveret.ports.coordinator import WriteOutcome
from leveret.ports.replication import START, EpochEnd, LogFiles, LogPlace, RawBatches
from leveret.replication.attaching import Comparison, Difference, compare
from leveret.replication.copying import FollowerCopy
from leveret.replication.effects import (
    CompareLogs,
    Disconnect,
    EndReign,
    OpenLogs,
    ReadLog,
    Replicated,
    Send,
    WriteEntry,
)
from leveret.replication.limits import ReplicationLimits
from leveret.replication.messages import Acknowledge, Attach, Attached, Drop
from leveret.replication.replica import Replica, Role
from leveret.replication.shard import ShardEntry
from tests.replication.test_rules import LAG_MS, Trace

HANG_MS = ReplicationLimits().flush_ms_max
AT = LogPlace(0, 0, 100)
LACKS_ALL = Comparison(
    (Difference("one", place=START),),
    {"one": LogFiles("one", ((0, 0),), (EpochEnd(0, AT),), AT, 5)},
)


class DiskTrace(Trace):
    """Nodes whose disks answer when a test says so."""

    def finish(self, node, what):
        """Finish the first request of a kind that the disk of a node has."""
        work = self.world.process(node).work
        at = [name for name, _ in work].index(what)
        _, done = work.pop(at)
        done()
        self.world.check()

    def elect_another(self, lost, *held):
        self.world.crash(lost)
        self.lose(lost)
        self.calm(*held)


def test_a_flush_for_an_earlier_leader_acknowledges_nothing():
    trace = DiskTrace(3)
    trace.append()
    trace.calm("flush at 2")
    trace.elect_another(0, "flush at 2")
    trace.wait(LAG_MS + 500)
    trace.calm("flush at 2")
    assert trace.world.serving() == [1]
    trace.append(1)
    trace.calm("flush at 2")
    trace.finish(2, "flush")  # of the frame that the first leader has sent
    trace.calm("flush at 2")
    trace.calm()


@pytest.mark.parametrize("elects_it", [False, True])
def test_a_description_from_before_a_cut_is_not_used_behind_it(elects_it):
    held = "describe at 2", "cut at 2"
    trace = DiskTrace(3)
    trace.append()
    trace.calm("message 0 to 1", "flush at 0")  # the second follower alone has it
    trace.elect_another(0, *held, "message 0 to 1")
    trace.world.disconnect(trace.world.process(2), 1)
    trace.calm(*held)
    trace.finish(2, "describe")
    trace.calm(*held)
    trace.world.crash(1)
    trace.lose(1)
    if not elects_it:
        trace.world.start(0)
        trace.world.seen_live = dict(trace.world.live)
    trace.calm(*held)
    trace.finish(2, "describe")  # of before the cut, if one was asked for by the first
    trace.calm(*held)
    trace.wait(LAG_MS + 500)
    trace.calm(*held)
    if any(name == "cut" for name, _ in trace.world.process(2).work):
        trace.finish(2, "cut")
    trace.calm()


def test_an_acknowledgement_of_what_was_not_sent_ends_the_link():
    trace = Trace()
    trace.append()
    trace.calm("message 0 to 1")
    leader = trace.world.process(0)
    effects = leader.replica.received(1, Acknowledge(1, 10**9))
    assert effects == [Disconnect(1)]


def test_a_member_whose_session_has_ended_does_not_come_and_go():
    trace = Trace(3)
    trace.world.expire(1)
    changes = []
    for _ in range(6):
        trace.tick()
        trace.calm("elect", "learn 1")
        changes.append(trace.world.entry.isr)
    assert set(changes) == {frozenset({0, 2})}


def unready(isr, replicas):
    """Return a replica that is elected, and has not heard from its disk yet."""
    replica = Replica(0, 1, 0)
    replica.learned(ShardEntry(0, 1, 1, frozenset(isr), replicas, 2), 0)
    return replica


def writes_set(effects):
    """Return the in-sync set that the only write among effects is of."""
    [write] = [effect for effect in effects if isinstance(effect, WriteEntry)]
    return write.entry.isr


def elected(isr, replicas):
    replica = unready(isr, replicas)
    replica.kept_epoch(1)
    describing = replica._describing
    effects = replica.described(describing, ())
    return replica, effects


def attach(replica, node, comparison):
    [comparing] = replica.received(node, Attach(1, 1, ()))
    return replica.compared(node, comparing.number, comparison, 0)


def test_an_elected_node_that_gives_up_opens_nothing():
    replica, _ = elected({0, 1}, (0, 1))
    replica.tick({0: 1}, 0)  # the other one is not live
    replica.resign("damage")
    effects = replica.written(WriteOutcome.DONE)
    assert not any(isinstance(effect, OpenLogs | Replicated) for effect in effects)


def compare_all(ours, theirs):
    return compare(ours, theirs, keeps=True, has_last=lambda _: True)


def test_a_member_is_out_of_the_set_before_an_idle_log_is_cut():
    replica, _ = elected({0, 1}, (0, 1))
    attach(replica, 1, Comparison((), {}))
    replica.opened()
    ours = LogFiles("one", ((0, 0),), (EpochEnd(1, AT),), AT, 10)
    theirs = ours._replace(epochs=(EpochEnd(0, AT),))
    effects = attach(replica, 1, compare_all({"one": ours}, [theirs]))
    assert not any(
        isinstance(effect, Send) and isinstance(effect.message, Attached) for effect in effects
    )
    [_, write] = replica.tick({0: 1, 1: 1}, 0)
    assert write.entry.isr == {0}


def test_a_follower_for_which_too_many_files_wait_attaches_anew():
    replica, _ = elected({0, 1}, (0, 1))
    replica._limits = replica.leader._limits = ReplicationLimits(
        window_bytes_max=1, waiting_files_max=3
    )
    attach(replica, 1, Comparison((), {}))
    replica.opened()
    effects = [replica.removed("one", base, 0, 0) for base in range(6)]
    assert all(not any(isinstance(each, Disconnect) for each in few) for few in effects[:4])
    assert effects[5] == [Disconnect(1)]


@pytest.mark.parametrize("raw", [None, RawBatches(bytearray(), START, 0)])
def test_a_log_that_is_deleted_while_it_is_read_is_no_reason_to_attach_anew(raw):
    replica, _ = elected({0, 1}, (0, 1))
    attach(replica, 1, Comparison((), {}))
    replica.opened()
    [read] = replica.wrote("one", (START, 0), (AT, 10), 0)
    assert isinstance(read, ReadLog)
    replica.dropped("one", 0)
    [sent] = replica.read(1, read.number, raw)
    assert sent.message.operations == (Drop("one"),)


def test_a_member_that_lacked_a_log_that_was_deleted_stays_in_the_set():
    replica, _ = elected({0, 1}, (0, 1))
    [comparing] = replica.received(1, Attach(1, 1, ()))
    replica.dropped("one", 0)
    ours = LogFiles("one", ((0, 0),), (EpochEnd(1, AT),), AT, 10)
    effects = replica.compared(1, comparing.number, compare_all({"one": ours}, []), 0)
    assert not any(isinstance(effect, ReadLog) for effect in effects)
    replica.received(1, Acknowledge(1, 1))
    assert replica.tick({0: 1, 1: 1}, LAG_MS + 1) == []


def test_an_offset_that_a_follower_makes_up_commits_nothing():
    replica, _ = elected({0, 1}, (0, 1))
    attach(replica, 1, Comparison((), {}))
    replica.opened()
    replica.wrote("one", (LogPlace(), 0), (AT, 10), 0)
    behind = LogPlace(0, 0, 50)
    ours = LogFiles("one", ((0, 0),), (EpochEnd(1, AT),), AT, 10)
    difference = Difference("one", place=behind, offset=99)
    replica.disconnected(1, 0)
    effects = attach(replica, 1, Comparison((difference,), {"one": ours}))
    assert [effect.offset for effect in effects if isinstance(effect, Replicated)] in ([], [0])


@pytest.fixture
def copy():
    copy = FollowerCopy(node=1, incarnation=1, number=1, limits=ReplicationLimits())
    copy.begin(Comparison((), {}), now_ms=0, since_ms=0)
    return copy


def test_a_file_that_is_compacted_while_it_is_read_is_copied(copy):
    copy.wrote("one", (LogPlace(), 0), (LogPlace(5, 0, 10), 6), now_ms=0)
    copy.send(1)
    copy.replaced("one", (0, 0), 1001, now_ms=1)
    copy.read(RawBatches(bytearray(50), LogPlace(5), 5))  # it had been read before
    effects = copy.send(1)
    assert [effect.place for effect in effects if isinstance(effect, ReadLog)] == [(0, 1001, 0)]


def test_what_was_read_is_sent_while_a_device_is_waited_for(copy):
    copy.wrote("one", (LogPlace(), 0), (AT, 10), now_ms=0)
    copy.wrote("two", (LogPlace(), 0), (AT, 10), now_ms=0)
    copy.send(1)
    copy.read(RawBatches(bytearray(100), AT, 10))
    [_] = copy.send(1)
    [sent] = copy.finish(1)
    assert [operation.log for operation in sent.message.operations] == ["one"]


def test_a_follower_that_is_never_wholly_caught_up_is_as_late_as_its_oldest_byte(copy):
    copy.wrote("one", (LogPlace(), 0), (AT, 1), now_ms=100)
    for batch in range(2, 60):
        now_ms, end = batch * 100, batch * 100
        copy.send(1)
        before = LogPlace(0, 0, end - 100), batch - 1
        copy.wrote("one", before, (LogPlace(0, 0, end), batch), now_ms)
        copy.read(RawBatches(bytearray(100), *before))
        copy.finish(1)
        copy.acknowledged(copy.sent)
        since_ms = copy.unsafe_since()
        assert since_ms is not None
        assert now_ms - since_ms <= 200


def test_an_elected_node_waits_for_the_description_that_it_has_asked_for():
    replica = Replica(0, 1, 0)
    entry = ShardEntry(0, 1, 1, frozenset({0, 1}), (0, 1), 2)
    [*_, describe] = replica.learned(entry, 0)
    replica.kept_epoch(1)
    assert replica.described(describe.number - 1, ()) == []
    assert replica.described(describe.number, ()) == []
    [comparing] = replica.received(1, Attach(1, 1, ()))
    assert isinstance(comparing, CompareLogs)


def test_a_node_that_is_alone_compares_nothing_before_its_logs_are_open():
    """Nothing was described, so that what a follower lacks would not be seen."""
    replica = Replica(0, 1, 0)
    replica.learned(ShardEntry(0, 1, 1, frozenset({0}), (0, 1, 2), 2), 0)
    assert replica.received(1, Attach(1, 1, ())) == []
    assert replica.kept_epoch(1) == [OpenLogs(1)]
    assert replica.received(2, Attach(1, 1, ())) == []
    compared = [each.follower for each in replica.opened() if isinstance(each, CompareLogs)]
    assert compared == [1, 2]


def leads_after(replica, effects):
    """Say whether a replica leads; if not, it has stopped, and leaves the set to the others."""
    if replica.role is not Role.LEAVING:
        return True
    end, write = effects
    assert end == EndReign("its disk hangs: a flush takes 5001 ms already")
    assert (write.entry.leader, write.entry.isr) == (None, {1})
    return False


@pytest.mark.parametrize(
    ("isr", "flush_ms", "leads"),
    [({0, 1}, 5_001, False), ({0, 1}, 5_000, True), ({0}, 5_001, True)],
)
def test_a_leader_whose_disk_hangs_leaves_the_lead_to_others(isr, flush_ms, leads):
    replica, _ = elected(isr, (0, 1))
    if isr == {0, 1}:
        attach(replica, 1, Comparison((), {}))
    replica.opened()
    assert replica.role is Role.LEADING
    assert leads_after(replica, replica.tick({0: 1, 1: 1}, 0, flush_ms)) is leads


def test_a_leader_whose_disk_hangs_goes_on_where_it_is_to_be_alone():
    replica, _ = elected({0, 1}, (0, 1))
    attach(replica, 1, Comparison((), {}))
    replica.opened()
    [_, write] = replica.tick({0: 1}, 0)
    assert write.entry.isr == {0}
    assert replica.tick({0: 1}, 0, 5_001) == []
    replica.written(WriteOutcome.DONE)
    assert replica.tick({0: 1}, 0, 5_001) == []
    assert replica.role is Role.LEADING


@pytest.mark.parametrize(
    ("isr", "is_kept", "leads"),
    [({0, 1}, False, False), ({0, 1}, True, True), ({0}, False, True)],
)
def test_an_elected_node_whose_disk_hangs_leaves_the_lead_to_others(isr, is_kept, leads):
    replica = Replica(0, 1, 0)
    replica.learned(ShardEntry(0, 1, 1, frozenset(isr), (0, 1), 2), 1_000)
    assert replica.tick({0: 1, 1: 1}, 6_000) == []
    if is_kept:
        replica.kept_epoch(1)
    # It has many files: to flush all of them takes a while.
    assert leads_after(replica, replica.tick({0: 1, 1: 1}, 6_001, 60_000)) is leads


@pytest.mark.parametrize("live", [{}, {2: 1}, {0: 0}], ids=["none", "others", "earlier life"])
def test_nobody_is_dead_by_a_list_in_which_the_leader_is_not(live):
    replica, _ = elected({0, 1}, (0, 1))
    assert replica.tick(live, 0) == []
    [_, write] = replica.tick({0: 1}, 0)
    assert write.entry.isr == {0}


def test_who_has_no_link_leaves_the_set_though_nobody_knows_who_is_live():
    replica, _ = elected({0, 1}, (0, 1))
    replica.disconnected(1, 0)
    [_, write] = replica.tick({}, ReplicationLimits().absent_ms_max + 1)
    assert write.entry.isr == {0}


def test_who_is_late_and_loses_its_link_for_a_moment_stays_in_the_set():
    trace = Trace(3)
    trace.append()
    trace.calm()
    trace.append()
    trace.calm("flush at 2")
    trace.wait(ReplicationLimits().absent_ms_max + 500)
    trace.calm("flush at 2")
    trace.world.disconnect(trace.world.process(2), 0)
    trace.tick()
    assert 2 in trace.world.entry.isr
    trace.calm("flush at 2")
    trace.tick()
    trace.calm()
    assert 2 in trace.world.entry.isr


@pytest.mark.parametrize("hangs", [False, True])
def test_who_has_no_link_leaves_the_set_sooner_than_who_hangs(hangs):
    limits = ReplicationLimits()
    trace = Trace(3)
    trace.append()
    trace.calm()
    began = trace.world.now
    if hangs:
        trace.append()
        trace.calm("flush at 2")
    else:
        trace.world.disconnect(trace.world.process(2), 0)
    held = "flush at 2", "connect 2"
    while 2 in trace.world.entry.isr:
        trace.wait(100)
        trace.calm(*held)
        trace.tick()
    took = trace.world.now - began
    limit = limits.lag_ms_max if hangs else limits.absent_ms_max
    assert limit <= took <= limit + 500
    trace.calm()
    trace.wait(100)
    trace.calm()
    assert 2 in trace.world.entry.isr


@pytest.mark.parametrize("cuts_at_ms", [None, 4_000])
def test_a_member_that_lacks_something_lags_from_the_end_of_the_comparison_on(cuts_at_ms):
    replica, _ = elected({0, 1}, (0, 1))
    [comparing] = replica.received(1, Attach(1, 1, ()))
    if cuts_at_ms is not None:
        cut = Comparison((Difference("one", cut=AT),), {})
        replica.compared(1, comparing.number, cut, cuts_at_ms)
        [comparing] = replica.received(1, Attach(1, 1, ()))
    replica.compared(1, comparing.number, LACKS_ALL, 8_000)
    assert replica.tick({0: 1, 1: 1}, 9_000) == []
    assert writes_set(replica.tick({0: 1, 1: 1}, 8_001 + LAG_MS)) == {0}


def test_a_member_whose_link_ends_again_and_again_is_not_waited_for_without_end():
    replica, _ = elected({0, 1}, (0, 1))
    effects, now_ms = [], 0
    while not effects and now_ms < 60_000:
        [comparing] = replica.received(1, Attach(1, 1, ()))
        replica.compared(1, comparing.number, LACKS_ALL, now_ms)
        now_ms += 1_000
        effects = replica.tick({0: 1, 1: 1}, now_ms)
        replica.disconnected(1, now_ms)
    assert writes_set(effects) == {0}


def test_a_disk_that_refuses_leaves_the_set_only_where_another_member_is_live():
    for live, leaves in ({0: 1}, False), ({0: 1, 2: 1}, False), ({0: 1, 1: 1}, True):
        replica = unready({0, 1}, (0, 1, 2))
        assert replica.tick(live, 1_000) == []
        effects = replica.failed("the disk is full")
        assert [type(effect) for effect in effects] == [EndReign, *[WriteEntry] * leaves]
        assert replica.role is (Role.LEAVING if leaves else Role.OVER)


def test_a_disk_that_refuses_keeps_the_lead_until_it_is_known_who_is_live():
    for before in {}, {0: 0, 1: 1}:  # read by no incarnation, or by an earlier one
        replica = unready({0, 1}, (0, 1))
        assert replica.tick(before, 1_000) == []
        assert [type(effect) for effect in replica.failed("the disk is full")] == [EndReign]
        assert replica.role is Role.LEAVING
        assert writes_set(replica.tick({0: 1, 1: 1}, 1_100)) == {1}


def test_a_disk_that_hangs_is_waited_for_until_another_member_is_live():
    replica = unready({0, 1}, (0, 1))
    assert replica.tick({0: 1}, 2 * HANG_MS) == []
    assert writes_set(replica.tick({0: 1, 1: 1}, 2 * HANG_MS)) == {1}


def test_who_has_lost_what_it_had_flushed_leaves_the_set_to_members_that_are_away():
    replica = unready({0, 1}, (0, 1))
    assert replica.tick({0: 1}, 1_000) == []
    assert writes_set(replica.damaged("a log has less than was flushed")) == {1}


@pytest.mark.parametrize("cuts", [False, True])
def test_a_comparison_of_many_logs_is_no_lag_of_the_member(cuts):
    replica, _ = elected({0, 1}, (0, 1))
    [comparing] = replica.received(1, Attach(1, 1, ()))
    assert replica.tick({0: 1, 1: 1}, 9_000) == []
    cut = Difference("one", cut=AT)
    comparison = Comparison((cut,) if cuts else (), {})
    effects = replica.compared(1, comparing.number, comparison, 9_000)
    assert any(isinstance(effect, OpenLogs) for effect in effects) is not cuts
    assert replica.tick({0: 1, 1: 1}, 9_000 + LAG_MS) == []


def test_a_comparison_that_does_not_end_is_not_waited_for():
    replica, _ = elected({0, 1}, (0, 1))
    replica.received(1, Attach(1, 1, ()))
    [_, write] = replica.tick({0: 1, 1: 1}, 10_001)
    assert write.entry.isr == {0}


def test_a_member_that_comes_back_while_logs_are_opened_is_not_waited_for():
    trace = DiskTrace(3)
    trace.elect_another(0)
    trace.wait(250)
    trace.calm("open")  # which may need a commit, and it is compared with open logs only
    assert trace.world.process(1).replica.leader.has_begun_opening
    trace.world.disconnect(trace.world.process(2), 1)
    trace.calm("open")
    trace.wait(LAG_MS + 500)
    trace.calm("open")
    assert trace.world.entry.isr == {1}
    trace.calm()
    trace.wait(500)
    trace.calm()
    assert trace.world.entry.isr == {1, 2}
