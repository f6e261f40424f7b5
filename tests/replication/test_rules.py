"""Each rule of the replication: a trace in which it matters, with the rule and without it.

The names are those of the rules and faults of the executable model, which finds the same in states
of its own. Those about promises, moves, forwarded publishes and durability `os` have no code yet.
What a store or the coordinator must do is tested there.
"""

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import pytest

from leveret.cluster import plan
from leveret.replication import attaching
from leveret.replication.follower import Follower
from leveret.replication.in_sync_set import InSyncSet
from leveret.replication.leader import Leader
from leveret.replication.limits import ReplicationLimits
from leveret.replication.replica import Replica
from leveret.replication.shard import ShardEntry
from tests.replication.changed_code import changed
from tests.replication.driver import Driver
from tests.replication.world import BrokenError, World

LAG_MS = ReplicationLimits().lag_ms_max
COMPARISON_MS = ReplicationLimits().comparison_ms_max


class Trace(Driver):
    """Nodes of which the first leads; `log` is the log that traces write to."""

    log = "one"

    def __init__(self, count: int = 2, members: tuple[int, ...] | None = None, minimum: int = 1):
        isr = None if members is None else frozenset(members)
        super().__init__(World(count, members=isr, members_min=minimum))
        self.lead()

    def append(self, node: int = 0) -> None:
        self.world.value += 1
        self.world.append(node, self.log, self.world.value)

    def flush(self, node: int = 0) -> None:
        self.happen(f"flush at {node}")

    def tick(self, node: int = 0) -> None:
        self.world.tick(node)
        self.world.check()

    def lag(self) -> None:
        """Let a follower be late; the leader does not look yet."""
        self.world.now += LAG_MS + 1
        for node in self.world.live:
            self.world.renew(node)

    def lose(self, node: int) -> None:
        """Lose a node's session, and have the controller know. Its process goes on."""
        self.world.expire(node)
        self.world.seen_live = dict(self.world.live)

    def start_with_old_entry(self, node: int) -> None:
        self.world.start(node)
        self.world.learn(node, self.world.former[-1])


def new_member_lacks_what_is_committed():
    trace = Trace(members=(0,))
    trace.append()
    trace.flush()  # the leader is the set
    trace.tick()
    trace.calm("message", "read")


def node_has_forgotten_its_epoch(node, *held):
    """Crash a node in a new epoch, while what is `held` is under way: it meets the old leader."""
    trace = Trace(3)
    trace.lose(0)
    trace.calm("learn 0", *held)
    trace.world.crash(node)
    trace.start_with_old_entry(node)
    trace.calm("learn", "elect", "message 0", "message 1", "message 2")


def lost_write_is_done_late():
    trace = Trace(members=(0,))
    trace.tick()
    write = trace.world.writes[0]
    trace.world.lose_answer(write)
    trace.append()
    trace.calm("write of", "message 0")
    trace.world.do_write(write)
    trace.world.check()


def new_member_is_recorded_before_the_answer():
    trace = Trace(members=(0,))
    trace.tick()
    trace.append()
    trace.calm("write of", "message 0")
    trace.happen("write of 0")


def member_is_dropped_by_a_write_that_is_not_done():
    trace = Trace(3)
    trace.append()
    trace.calm("message 0 to 1")
    trace.lag()
    trace.tick()
    trace.append()
    trace.calm("message 0 to 1", "write of")


def leader_serves_while_it_leaves():
    trace = Trace(3)
    trace.tick()
    trace.world.resign(0)
    trace.happen("write of 0")
    trace.calm("answer", "learn 0")
    trace.wait(250)
    assert trace.world.entry.leader == 1


def elected_node_makes_the_set_larger():
    trace = Trace(3, members=(0, 1))
    trace.lose(0)
    trace.calm("open", "learn 0")
    trace.tick(1)


def set_is_below_the_minimum_when_a_write_is_done():
    trace = Trace(minimum=2)
    trace.append()
    trace.calm("message 0", "flush at 0")
    trace.lag()
    trace.tick()
    trace.calm("write of", "flush at 0")
    trace.happen("write of 0")
    trace.calm("answer")


def set_is_below_the_minimum():
    trace = Trace(members=(0,), minimum=2)
    trace.append()
    trace.calm("message")


def controller_makes_the_set_smaller():
    trace = Trace()
    trace.world.crash(0)
    trace.lose(0)
    trace.calm()
    trace.world.crash(1)
    trace.world.start(0)
    trace.world.expire(1)
    trace.world.seen_live = dict(trace.world.live)
    trace.calm()
    trace.wait(LAG_MS + 500)
    trace.calm()
    if trace.world.serving() != [0]:
        raise BrokenError("nobody serves")


def new_member_has_lost_its_disk():
    trace = Trace(members=(0,))
    trace.append()
    trace.calm()
    trace.tick()
    trace.world.replace(1)
    trace.happen("write of 0")


def leader_confirms_alone():
    trace = Trace()
    trace.append()
    trace.flush()


def follower_acknowledges_what_it_has_written():
    trace = Trace()
    trace.append()
    trace.calm("flush at 1")


def new_member_lacks_the_beginning_of_the_epoch():
    trace = Trace(members=(0,))
    trace.append()
    trace.calm("message", "read")
    trace.world.crash(0)
    trace.world.start(0)
    trace.world.seen_live = dict(trace.world.live)
    trace.calm("read")
    assert trace.world.serving() == [0]
    trace.tick()
    trace.calm("read")


def follower_comes_before_one_that_is_alone_is_open():
    trace = Trace(members=(0,))
    trace.append()
    trace.calm("message", "read")
    trace.world.crash(0)
    trace.world.start(0)
    trace.world.seen_live = dict(trace.world.live)
    trace.calm("keep epoch at 0")
    trace.calm("open")
    trace.calm("read")
    assert trace.world.serving() == [0]
    trace.tick()
    trace.calm()
    trace.append()
    trace.calm()


def controller_elects_a_node_that_is_not_in_sync():
    trace = Trace(3, members=(0,))
    trace.append()
    trace.calm("read")
    trace.world.crash(0)
    trace.lose(0)
    trace.calm()
    trace.wait(LAG_MS + 500)
    trace.calm()


def elected_node_opens_before_others_have_its_tail():
    trace = Trace(3)
    trace.append()
    trace.calm("message 0 to 2", "flush at 0", "flush at 1")
    trace.world.crash(0)
    trace.lose(0)
    trace.calm("message 1 to 2")


def logs_of_equal_length_differ():
    trace = Trace()
    trace.append()
    trace.calm("message", "read")
    trace.world.crash(0)
    trace.lose(0)
    trace.calm()
    trace.wait(LAG_MS + 500)
    trace.calm()
    trace.append(1)
    trace.calm()
    trace.world.start(0)
    trace.calm()
    trace.append(1)
    trace.calm()


def restarted_leader_goes_on_by_the_old_entry():
    trace = Trace()
    trace.append()
    trace.append()
    trace.calm("flush at 0", "flush at 1")
    trace.world.crash_machine(0)
    trace.world.start(0)
    trace.calm("elect", "connect", "flush at 1")
    if trace.world.process(0).replica.leader is None:
        return
    trace.append()
    trace.world.check()


def leader_opens_what_a_follower_is_to_cut():
    """An elected node that is not in front of all has its tail copied, and more of it cut."""
    trace = Trace(3)
    trace.append()
    trace.calm("read")
    trace.world.crash(0)
    trace.lose(0)
    trace.calm()
    trace.wait(LAG_MS + 500)
    trace.calm()
    trace.append(1)
    trace.world.start(0)
    trace.calm()
    trace.wait(500)
    trace.calm()
    assert trace.world.entry.isr == {0, 1, 2}
    assert len(trace.world.disks[0].log(trace.log).batches()) == 1


def member_is_damaged():
    trace = Trace()
    trace.append()
    trace.calm()
    trace.world.disks[1].damage[trace.log] = 0
    trace.world.disconnect(trace.world.process(1), 0)
    while 1 in trace.world.entry.isr:
        trace.happen("connect 1 to 0")
        trace.happen("describe at 1")
        trace.wait(250)
        trace.calm("connect", "describe")
    trace.calm()
    trace.wait(250)
    trace.world.start(1)  # it has attached, and begins another incarnation
    trace.calm()
    trace.wait(250)
    trace.calm()
    assert trace.world.entry.isr == {0, 1}


def new_member_is_damaged():
    trace = Trace(members=(0,))
    trace.append()
    trace.calm()
    trace.tick()  # makes it a member
    trace.world.disks[1].damage[trace.log] = 0
    trace.world.disconnect(trace.world.process(1), 0)
    trace.happen("connect 1 to 0")
    trace.happen("describe at 1")
    trace.happen("write of 0")


def disk_of_an_elected_node_fails():
    trace = Trace(3)
    trace.world.crash(0)
    trace.lose(0)
    trace.calm("describe at 1")
    elected = trace.world.process(1)
    trace.tick(1)
    trace.world.fail(elected, [what for what, _ in elected.work].index("describe"))
    trace.calm()
    trace.wait(LAG_MS + 500)
    trace.calm()
    assert trace.world.serving() == [2], "nobody else serves"


def elected_node_is_damaged():
    trace = Trace(3)
    trace.append()
    trace.calm()
    for node in range(3):
        trace.world.crash_machine(node)
        trace.world.expire(node)
    trace.world.disks[0].damage[trace.log] = 0
    start(trace, 0)
    trace.calm("describe at 0")
    trace.tick()  # the others are not live yet
    trace.calm()
    start(trace, 1, 2)
    trace.calm()
    assert trace.world.serving() == [1], "nobody serves what was confirmed"
    start(trace, 0)
    trace.calm()
    trace.wait(250)
    trace.calm()
    assert trace.world.entry.isr == {0, 1, 2}


def start(trace, *nodes):
    """Start nodes, and have the controller know."""
    for node in nodes:
        trace.world.start(node)
    trace.world.seen_live = dict(trace.world.live)


def members_wait_for_a_node_that_describes_its_files():
    trace = Trace(3)
    trace.world.crash(0)
    trace.lose(0)
    trace.calm("describe at 1")
    trace.wait(COMPARISON_MS + 500)
    trace.calm("compare at 1")
    trace.tick(1)
    trace.calm()
    assert trace.world.entry.isr == {1, 2}, "a member that has waited is out"


class Without(NamedTuple):
    """Change of the code, and the trace that breaks with it."""

    trace: Callable[[], None]
    owner: type | object
    function: str
    old: str
    new: str
    breaks: str


RULES = {
    "enter_with_all_committed": Without(
        new_member_lacks_what_is_committed,
        Leader,
        "_may_enter",
        "uncommitted is None or unsafe.safe < uncommitted.replicated",
        "False",
        "I4",
    ),
    "reign_is_flushed_first": Without(
        partial(node_has_forgotten_its_epoch, 1, "keep epoch at 1", "message 1 to 2"),
        Replica,
        "_is_now",
        "return [] if self._awaited else",
        "return [] if 'files' in self._awaited else",
        "I7",
    ),
    "epoch_before_attach": Without(
        partial(node_has_forgotten_its_epoch, 2, "keep epoch at 2", "open"),
        Follower,
        "_attach",
        " or not self._is_epoch_kept",
        "",
        "I7",
    ),
    "unknown_is_overwritten": Without(
        lost_write_is_done_late,
        InSyncSet,
        "answered",
        "self._is_unknown = True\n",
        "self._settle(self._seen)\n        return []\n",
        "I4",
    ),
    "stop_before_leaving": Without(
        leader_serves_while_it_leaves,
        Replica,
        "resign",
        "self.role = Role.LEAVING\n    self.leader.end()\n"
        "    return [EndReign(reason), *self._leave(self.leader)]",
        "return self._leave(self.leader)",
        "I10",
    ),
    "grow_only_leading": Without(
        elected_node_makes_the_set_larger,
        Leader,
        "_may_enter",
        "not self.is_open or ",
        "",
        "larger",
    ),
    "minimum_of_both": Without(
        set_is_below_the_minimum_when_a_write_is_done,
        InSyncSet,
        "certain",
        "isr & self.written.isr",
        "isr | self.written.isr",
        "confirmed with 1",
    ),
    "only_leader_shrinks": Without(
        controller_makes_the_set_smaller,
        plan,
        "_elected",
        "return entry.elected(node, live[node])",
        "return entry._replace(isr=entry.isr & live.keys()).elected(node, live[node])",
        "nobody serves",
    ),
    "grow_checks_incarnation": Without(
        new_member_has_lost_its_disk,
        Leader,
        "tick",
        "tuple(entering.items())",
        "tuple()",
        "I4",
    ),
    "member-keeps-what-is-damaged": Without(
        member_is_damaged,
        Follower,
        "_describe",
        "keeps=self.is_member or self.has_attached",
        "keeps=False",
        "I4",
    ),
    "new-member-keeps-what-is-damaged": Without(
        new_member_is_damaged,
        Follower,
        "_describe",
        "keeps=self.is_member or self.has_attached",
        "keeps=self.is_member",
        "I4",
    ),
    "failed-disk-resigns": Without(
        disk_of_an_elected_node_fails,
        Replica,
        "failed",
        "return self.resign(reason)",
        "return []",
        "nobody else serves",
    ),
    "shrink-before-sound": Without(
        elected_node_is_damaged,
        Leader,
        "tick",
        "if not self._is_ready:",
        "if False:",
        "smaller",
    ),
    "members-wait-for-description": Without(
        members_wait_for_a_node_that_describes_its_files,
        Leader,
        "tick",
        "self._began_ms = now_ms",
        "pass",
        "is out",
    ),
    "confirm-before-replication": Without(
        leader_confirms_alone,
        Leader,
        "_commit",
        "for member in self.set.counted - {self.node}:",
        "for member in ():",
        "I4",
    ),
    "epoch-forgotten": Without(
        partial(node_has_forgotten_its_epoch, 2, "open"),
        Replica,
        "learned",
        " or entry.epoch < self._epoch",
        "",
        "I7",
    ),
    "acknowledge-before-flush": Without(
        follower_acknowledges_what_it_has_written,
        Follower,
        "_carry_out",
        "[CarryOut(message.operations), *self._flush()]",
        "[CarryOut(message.operations), Send(self.leader, Acknowledge(self.epoch, self._frame))]",
        "I4",
    ),
    "new-member-after-answer": Without(
        new_member_is_recorded_before_the_answer,
        InSyncSet,
        "counted",
        "isr | self.written.isr",
        "isr",
        "I4",
    ),
    "dropped-member-at-once": Without(
        member_is_dropped_by_a_write_that_is_not_done,
        InSyncSet,
        "counted",
        "isr | self.written.isr",
        "self.written.isr",
        "I4",
    ),
    "enter-before-beginning": Without(
        new_member_lacks_the_beginning_of_the_epoch,
        Leader,
        "_may_enter",
        "uncommitted is None or ",
        "uncommitted is not None and ",
        "I4",
    ),
    "compare-what-is-not-described": Without(
        follower_comes_before_one_that_is_alone_is_open,
        Leader,
        "ready",
        "self._open_if_safe() + self._compare_waiting()",
        "self._compare_waiting() + self._open_if_safe()",
        "I4",
    ),
    "elect-outside-set": Without(
        controller_elects_a_node_that_is_not_in_sync,
        plan,
        "_elected",
        "node in entry.isr and ",
        "",
        "I4|committed",
    ),
    "tail-shown-early": Without(
        elected_node_opens_before_others_have_its_tail,
        Leader,
        "_is_tail_safe",
        "return False",
        "return True",
        "I4",
    ),
    "attach-by-length": Without(
        logs_of_equal_length_differ,
        attaching,
        "difference",
        "place = common_place(leader, follower)",
        "place, has_last = min(follower.place, leader.place), lambda _: True",
        "I3|place",
    ),
    "incarnation-ignored": Without(
        restarted_leader_goes_on_by_the_old_entry,
        ShardEntry,
        "is_led_by",
        "(self.leader, self.incarnation) == (node, incarnation)",
        "self.leader == node",
        "I3",
    ),
    "minimum-ignored": Without(
        set_is_below_the_minimum,
        Leader,
        "_set_in_sync_counts",
        "SetInSyncCounts(len(",
        "SetInSyncCounts(9 + len(",
        "confirmed with 1",
    ),
}


@pytest.mark.parametrize("name", RULES)
def test_trace_breaks_nothing(name):
    RULES[name].trace()


@pytest.mark.parametrize("name", RULES)
def test_trace_breaks_without_the_rule(name):
    rule = RULES[name]
    with (
        changed(rule.owner, rule.function, rule.old, rule.new),
        pytest.raises(AssertionError, match=rule.breaks),
    ):
        rule.trace()


def test_a_tail_that_was_not_committed_is_cut():
    leader_opens_what_a_follower_is_to_cut()
