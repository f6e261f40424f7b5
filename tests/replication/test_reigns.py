"""Nodes with real files that lead one after another: what was committed is in every log.

A node leads with a store, and follows with the files of a replica, which it attaches by comparing
them with the leader's. Its process or its machine may die at any time, and lose what it has not
flushed.
"""

import asyncio
from contextlib import suppress
from functools import partial

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from leveret.ports import Durability
from leveret.ports.replication import START, LogPlace, PlaceGoneError
from leveret.replication.attaching import compare
from leveret.storage.commit import FlushFigures
from leveret.storage.replica_files import (
    cut_replica,
    describe_log,
    has_last_batch,
    open_replica,
)
from leveret.storage.replica_log import FileReplicaLog
from tests.storage.faulty_files import FaultyFileSystem
from tests.storage.harness import abandon, bodies, put
from tests.storage.test_log_machine import StepCommitter
from tests.storage.test_replica_machine import Copies, Leader
from tests.support.examples import examples

NAME = "one"
CUTS_MAX = 20


class Replica:
    """The files of a node that follows, as long as its process runs."""

    def __init__(self, files, directory, flushed=START):
        self.files, self.directory = files, directory
        self.committer = StepCommitter()
        self.open(flushed)

    def open(self, flushed=START):
        self.end = open_replica(self.files, self.directory, flushed)
        self.log = FileReplicaLog(
            self.files, self.directory, self.committer, self.end, FlushFigures()
        )

    def describe(self):
        return self.end.describe(self.files, NAME)

    def close(self):
        self.log.close()
        self.committer.close()


class Reigns(RuleBasedStateMachine):
    """Two nodes. The follower has acknowledged what is before the place `safe`, if it is attached.

    `written` are the bodies in the leader's log, `kept` those that were ever committed. Up to the
    places `flushed` each node is known to be on its disk.
    """

    def __init__(self):
        super().__init__()
        self.loop = asyncio.new_event_loop()
        self.disks = [FaultyFileSystem(), FaultyFileSystem()]
        self.node, self.epoch = 0, 1
        self.members = {0, 1}
        self.safe = None
        self.written, self.kept = {}, {}
        self.flushed = [START, START]
        self.number = 0
        self.lead()
        self.replica = Replica(self.disks[1], self.log.directory)
        self.attach()

    @property
    def log(self):
        return self.leader.log

    def lead(self):
        """Open a store on the leader's disk, for a new epoch."""
        files = self.disks[self.node]
        self.leader = Leader(self.loop, files, Durability.FSYNC, encrypted=False, epoch=self.epoch)
        assert self.leader.store.losses.unacknowledged == []
        self.log.copy_to(Copies())
        self.note_committed()

    def note_committed(self):
        log = self.log
        if self.members == {self.node}:
            log.replicated(log.place, log.end)
        elif self.safe is not None:
            log.replicated(*self.safe)
        committed = log.committed
        self.kept |= {at: body for at, body in self.written.items() if at < committed}

    # -- what the leader does

    @rule(count=st.integers(1, 4), size=st.integers(0, 300))
    def publish(self, count, size):
        sent = []
        for _ in range(count):
            self.number += 1
            sent.append(b"%d" % self.number + b"x" * size)
        first = self.log.end
        self.written |= {first + at: body for at, body in enumerate(sent)}
        put(self.log, *sent)

    @rule(data=st.data())
    def settle(self, data):
        log = self.log
        if log.committed:
            first = data.draw(st.integers(0, log.committed - 1))
            log.settle([(first, data.draw(st.integers(first + 1, log.committed)))])
            log.write_settlements()

    @rule()
    def settle_all_but_a_few(self):
        if self.log.committed > 3:
            self.log.settle([(0, self.log.committed - 3)])
            self.log.write_settlements()

    @rule()
    def flush(self):
        place = self.log.place
        if self.log.segments:
            self.log._start_flush_behind()  # of settlements as well
        self.leader.drain()
        self.flushed[self.node] = place
        self.note_committed()
        self.leader.drain()

    @rule(count=st.integers(1, 3), kept_bytes=st.none() | st.integers(0, 300))
    def lose_a_reign_with_more_than_the_follower_has(self, count, kept_bytes):
        self.publish(count, 100)
        self.leader_dies(kept_bytes, other=True)
        self.publish(1, 50)
        self.come_back()

    # -- what the follower does

    def attach(self):
        """Cut what the leader does not have, until nothing is left to cut."""
        replica, leader = self.replica, self.log
        keeps = 1 - self.node in self.members
        for _ in range(CUTS_MAX):
            theirs = replica.describe()
            ours = describe_log(
                self.disks[self.node], NAME, leader.segments, leader.place, leader.end
            )
            found = compare(
                {NAME: ours} if ours.files else {},
                [theirs] if theirs.files else [],
                keeps=keeps,
                has_last=partial(has_last_batch, self.disks[self.node], leader.segments),
            ).differences
            if not found or found[0].cut is None:
                break
            replica.close()
            cut_replica(replica.files, replica.directory, found[0].cut)
            replica.open()
            self.flushed[1 - self.node] = replica.end.place
        else:
            raise AssertionError("it cuts for ever")
        self.rest = (theirs.place, theirs.offset)
        if found:
            self.copy_files(found[0].copied)
            self.rest = (found[0].place, found[0].offset)
        self.is_attached, self.safe = True, None

    def copy_files(self, names):
        """Copy files as a whole: those without messages that the follower has removed as a leader.

        Nothing is compacted here.
        """
        log, committer = self.replica.log, self.replica.committer
        for segment in self.log.segments:
            if (segment.base, segment.revision) in names:
                assert segment.stop == segment.base
                data = self.disks[self.node].files[segment.path].cached[: segment.size]
                log.copy(LogPlace(segment.base, segment.revision), data, is_last=True)
        done = []
        log.flush(done.append)
        committer.drain()
        assert done == [None]

    @rule()
    def come_back(self):
        if not self.is_attached:
            self.attach()

    @precondition(lambda self: self.is_attached)
    @rule(bytes_max=st.integers(1, 2000))
    def copy(self, bytes_max):
        place, offset = self.rest
        read = self.log.fetch_raw(place, offset, bytes_max)
        try:
            raw = self.loop.run_until_complete(read)
        except PlaceGoneError:
            self.leave()
            return
        if raw.data:
            self.replica.log.append(place, raw.data)
        self.rest = raw.stop, raw.offset

    @precondition(lambda self: self.is_attached)
    @rule()
    def acknowledge(self):
        end, replica = self.rest, self.replica
        if not replica.end.segments:
            return
        done = []
        replica.log.flush(done.append)
        replica.committer.drain()
        assert done == [None]
        if self.is_attached:
            self.safe = end
            self.flushed[1 - self.node] = replica.log.place
            self.note_committed()

    @precondition(lambda self: self.is_attached)
    @rule()
    def catch_up(self):
        for _ in range(100):
            if self.rest[0] == self.log.place or not self.is_attached:
                break
            self.copy(700)
        if self.is_attached:
            self.acknowledge()
            self.flush()

    def leave(self):
        self.is_attached, self.safe = False, None

    @rule()
    def drop(self):
        """Take the follower out of the set: what the leader has is committed."""
        self.members = {self.node}
        self.note_committed()

    @precondition(lambda self: self.is_attached and self.safe is not None)
    @rule()
    def enter(self):
        if self.safe[1] >= self.log.committed and self.rest == (self.log.place, self.log.end):
            self.members = {0, 1}

    @rule(kept_bytes=st.none() | st.integers(0, 300))
    def follower_dies(self, kept_bytes):
        self.leave()
        files = die(self.disks[1 - self.node], kept_bytes)
        self.disks[1 - self.node] = files
        self.replica.close()
        self.replica = Replica(files, self.log.directory, self.noted(1 - self.node))
        assert self.replica.end.place >= self.flushed[1 - self.node]

    def noted(self, node):
        """Return a place up to which a node knows that it has flushed: it notes it now and then."""
        return self.flushed[node] if self.number % 2 else START

    @rule(kept_bytes=st.none() | st.integers(0, 300), other=st.booleans())
    def leader_dies(self, kept_bytes, other):
        """Elect a member of the set: the follower, or the leader anew."""
        directory = self.log.directory
        abandon(self.leader.store)
        self.disks[self.node] = die(self.disks[self.node], kept_bytes)
        self.replica.close()
        self.leave()
        if other and 1 - self.node in self.members:
            self.node = 1 - self.node
        self.epoch += 1
        for each, files in enumerate(self.disks):
            replica = Replica(files, directory, self.noted(each))  # what is torn is cut
            assert replica.end.place >= self.flushed[each]
            self.flushed[each] = replica.end.place
            if each == self.node:
                replica.close()
            else:
                self.replica = replica
        self.open_when_safe()

    def open_when_safe(self):
        """Have the follower copy the tail, if it counts, before anybody can see it."""
        self.lead()
        log = self.log
        if len(self.members) == 2:
            self.attach()
            self.catch_up()
            assert self.rest[0] == log.place
        assert all(offset < log.end for offset in self.kept)
        self.written = {at: body for at, body in self.written.items() if at < log.end}
        self.note_committed()

    @invariant()
    def what_is_committed_is_in_every_log(self):
        log = self.log
        wanted = [offset for offset in self.kept if offset not in log.settled]
        for offset in wanted[:1] + wanted[-1:]:
            found = self.loop.run_until_complete(bodies(log, offset, offset + 1))
            assert found == {offset: self.kept[offset]}

    @invariant()
    def files_of_who_has_attached_are_prefixes(self):
        if not self.is_attached:
            return
        ours, theirs = self.disks[self.node], self.disks[1 - self.node]
        for segment in self.replica.end.segments:
            with suppress(KeyError):
                mine = ours.files[segment.path].cached[: segment.size]
                assert theirs.files[segment.path].cached[: segment.size] == mine

    def teardown(self):
        self.replica.close()
        abandon(self.leader.store)
        self.loop.close()


def die(files, kept_bytes):
    """Return what the end of a process leaves, or that of a machine."""
    return files.lose_process() if kept_bytes is None else files.lose_machine(kept_bytes)


TestReigns = Reigns.TestCase
TestReigns.settings = settings(
    max_examples=examples(150),
    stateful_step_count=40,
    suppress_health_check=[HealthCheck.filter_too_much, HealthCheck.too_slow],
)
