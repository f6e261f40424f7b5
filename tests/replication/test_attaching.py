"""Attaching: whatever two nodes have done before, their logs get equal, and nothing is lost."""

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from leveret.ports.replication import START, EpochEnd, LogFiles, LogPlace
from leveret.replication.attaching import Difference, common_place, compare, difference
from tests.replication.virtual_log import VirtualFile, VirtualLog
from tests.support.examples import examples

CUTS_MAX = 20


class AttachingMachine(RuleBasedStateMachine):
    """Two nodes of which one leads, in reign after reign, and the other comes and goes."""

    def __init__(self):
        super().__init__()
        self.logs = [VirtualLog("one"), VirtualLog("one")]
        self.leader, self.epoch = 0, 1
        self.members = {0, 1}
        self.is_attached = False
        self.committed = {}
        self.value = 0
        self.attach()

    @property
    def ours(self):
        return self.logs[self.leader]

    @property
    def theirs(self):
        return self.logs[1 - self.leader]

    # -- what the leader does

    @rule(batches=st.lists(st.sampled_from("rrcRC"), min_size=1, max_size=6), commits=st.booleans())
    def write(self, batches, commits):
        """Write records (r) and control batches (c), some of them (R, C) in a new file."""
        for kind in batches:
            self.value += 1
            log = self.ours
            begins = not log.files or log.files[-1].batches[-1].epoch != self.epoch
            value = self.value if kind in "rR" else -self.value
            log.write(self.epoch, value, rolls=kind in "RC" or begins)
        if commits:
            self.commit()

    @rule()
    def commit(self):
        """Commit what all members have."""
        if self.members == {self.leader}:
            end = self.ours.end
        elif self.is_attached:
            end = min(self.ours.end, self.theirs.end)
        else:
            return
        self.committed |= {batch.index: batch for batch in self.ours.batches() if batch.index < end}

    def committed_files(self):
        end = max(self.committed, default=-1) + 1
        return [file for file in self.ours.files[:-1] if file.end <= end]

    @precondition(lambda self: self.committed_files())
    @rule(tells=st.booleans())
    def remove(self, tells):
        """Remove the first file; the other one may not hear of it."""
        file = self.committed_files()[0]
        self.ours.remove(file.name)
        for index in range(file.end):
            self.committed.pop(index, None)
        if self.is_attached and tells and self.theirs.end >= file.end:
            self.theirs.remove(file.name)
        self.is_attached = self.is_attached and tells and self.theirs.end >= file.end

    @precondition(lambda self: self.committed_files())
    @rule(data=st.data())
    def compact(self, data):
        """Write a file anew. The other one does not hear of it."""
        file = data.draw(st.sampled_from(self.committed_files()))
        if file.offset_at(len(file.batches)) == file.base:  # without records there is nothing to do
            return
        self.value += 1
        self.ours.remove(file.name)
        revision = self.epoch * 1000 + self.value
        self.ours.add(VirtualFile(file.base, revision, file.index, list(file.batches)))
        self.is_attached = False

    # -- what the other does

    @precondition(lambda self: self.is_attached)
    @rule(count=st.integers(1, 3))
    def copy(self, count):
        raw = self.ours.read(self.rest, count)
        if raw is None:
            self.is_attached = False
            return
        if raw.data:
            self.theirs.append(self.rest, raw.data)
        self.rest = raw.stop

    @rule()
    def leave(self):
        self.is_attached = False

    @rule(leaves=st.booleans())
    def drop(self, leaves):
        self.members = {self.leader}
        self.is_attached = self.is_attached and not leaves
        self.commit()

    @rule()
    def attach(self):
        for _ in range(CUTS_MAX):
            found = self.compare()
            if found is None or found.cut is None:
                break
            self.theirs.cut(found.cut)
        else:
            raise AssertionError("it cuts for ever")
        self.rest = self.theirs.place
        if found is not None:
            self.rest = found.place
            for name in found.copied:
                file = next(file for file in self.ours.files if file.name == name)
                self.theirs.add(VirtualFile(*file.name, file.index, list(file.batches)))
            for name in found.removed:
                self.theirs.remove(name)
        self.is_attached = True

    def has_last(self, theirs):
        return self.ours.checksum_at(theirs.last) == theirs.checksum

    def compare(self) -> Difference | None:
        keeps = 1 - self.leader in self.members
        ours = {"one": self.ours.describe()} if self.ours.files else {}
        theirs = [self.theirs.describe()] if self.theirs.files else []
        found = compare(ours, theirs, keeps=keeps, has_last=self.has_last).differences
        return found[0] if found else None

    @precondition(lambda self: self.is_attached)
    @rule()
    def enter(self):
        if all(index < self.theirs.end for index in self.committed):
            self.members = {0, 1}

    # -- elections

    @rule(node=st.integers(0, 1))
    def elect(self, node):
        """Have a member lead, which has its tail copied before it serves."""
        if node not in self.members:
            return
        self.leader, self.epoch, self.is_attached = node, self.epoch + 1, False
        if len(self.members) == 2:
            self.catch_up()
        self.commit()

    @rule()
    def catch_up(self):
        self.attach()
        for _ in range(self.ours.end + len(self.ours.files)):
            if self.theirs.end < self.ours.end:
                self.copy(3)
        assert self.is_attached
        # The other one may have removed more in front, when it was the leader.
        theirs = self.theirs.files
        assert theirs == self.ours.files[len(self.ours.files) - len(theirs) :]

    @invariant()
    def members_have_what_is_committed(self):
        for node in self.members:
            has = {batch.index: batch for batch in self.logs[node].batches()}
            first = min(has, default=0)
            for index, batch in self.committed.items():
                assert index < first or has[index] == batch


TestAttaching = AttachingMachine.TestCase
TestAttaching.settings = settings(max_examples=examples(600), stateful_step_count=40)


def files(*names, epochs, end):
    """Return files with one log of them; `end` is (position in the last one, offset)."""
    ends = tuple(EpochEnd(epoch, LogPlace(*place)) for epoch, place in epochs)
    position, offset = end
    return LogFiles("one", names, ends, LogPlace(*names[-1], position), offset)


def differ(leader, follower, *, keeps, has_last=True):
    return difference(leader, follower, keeps=keeps, has_last=lambda _: has_last)


def test_the_common_place_is_the_smaller_end_of_the_last_epoch_of_both():
    leader = files((0, 0), (5, 0), epochs=[(1, (0, 0, 50)), (3, (5, 0, 9))], end=(9, 6))
    follower = files((0, 0), (7, 0), epochs=[(1, (0, 0, 70)), (2, (7, 0, 9))], end=(9, 8))
    assert common_place(leader, follower) == (0, 0, 50)
    assert differ(leader, follower, keeps=False) == Difference("one", cut=LogPlace(0, 0, 50))


def test_logs_without_a_common_epoch_have_nothing_in_common():
    leader = files((0, 0), epochs=[(2, (0, 0, 50))], end=(50, 5))
    follower = files((0, 0), epochs=[(1, (0, 0, 50))], end=(50, 5))
    assert differ(leader, follower, keeps=False) == Difference("one", cut=START)


def test_a_follower_that_is_behind_goes_on_at_its_end():
    leader = files((0, 0), epochs=[(1, (0, 0, 50))], end=(50, 5))
    follower = files((0, 0), epochs=[(1, (0, 0, 20))], end=(20, 2))
    found = differ(leader, follower, keeps=True)
    assert found == Difference("one", place=LogPlace(0, 0, 20), offset=2)


def test_a_new_log_begins_at_the_first_file_that_is_left():
    leader = files((5, 0), (9, 0), epochs=[(1, (9, 0, 50))], end=(50, 12))
    found = differ(leader, LogFiles("one"), keeps=False)
    assert found == Difference("one", place=LogPlace(5, 0, 0), offset=5)


def test_a_file_that_the_leader_has_compacted_is_copied_to_who_is_in_sync():
    leader = files((0, 1001), (5, 0), epochs=[(1, (0, 1001, 9)), (2, (5, 0, 8))], end=(8, 6))
    follower = files((0, 0), epochs=[(1, (0, 0, 50))], end=(50, 5))
    found = differ(leader, follower, keeps=True)
    assert found == Difference(
        "one", removed=((0, 0),), copied=((0, 1001),), place=LogPlace(5, 0, 0), offset=5
    )
    assert differ(leader, follower, keeps=False) == Difference("one", cut=LogPlace(0, 0, 0))


def test_files_that_the_leader_has_removed_since_are_cut_at_once():
    leader = files((0, 0), (30, 0), (40, 0), epochs=[(1, (40, 0, 50))], end=(50, 45))
    names = (0, 0), (10, 0), (20, 0), (20, 4096)
    follower = files(*names, epochs=[(1, (20, 4096, 50))], end=(50, 25))
    assert differ(leader, follower, keeps=False) == Difference("one", cut=LogPlace(10))
    assert differ(leader, follower, keeps=True).removed == names[1:]
    gone = leader._replace(files=((30, 0), (40, 0)))
    assert differ(gone, follower, keeps=False) == Difference("one", cut=LogPlace(0))


def test_a_file_that_the_follower_has_compacted_is_not_cut():
    leader = files((0, 0), epochs=[(1, (0, 0, 50))], end=(50, 5))
    follower = files((0, 1001), (5, 0), epochs=[(1, (5, 0, 7))], end=(7, 6))
    assert differ(leader, follower, keeps=True) == Difference("one", cut=LogPlace(5, 0, 0))


def test_a_log_that_the_leader_does_not_have_is_cut_to_its_start():
    follower = files((0, 0), epochs=[(1, (0, 0, 50))], end=(50, 5))
    assert compare({}, [follower], keeps=True, has_last=lambda _: True).differences == (
        Difference("one", cut=START),
    )


def test_a_file_whose_last_batch_the_leader_does_not_have_is_cut():
    leader = files((0, 0), (5, 0), epochs=[(1, (0, 0, 50)), (2, (5, 0, 20))], end=(20, 7))
    follower = leader._replace(last=LogPlace(5, 0, 10), checksum=7)
    leader = leader._replace(checksum=8)
    assert differ(leader, follower, keeps=False).cut is None
    found = differ(leader, follower, keeps=False, has_last=False)
    assert found == Difference("one", cut=LogPlace(5, 0, 0))


def test_a_compacted_file_beside_the_one_it_was_made_of_is_copied():
    epochs = [(1, (0, 4096, 9)), (2, (5, 0, 8))]
    leader = files((0, 0), (0, 4096), (5, 0), epochs=epochs, end=(8, 6))
    follower = files((0, 0), (5, 0), epochs=[(1, (0, 0, 50)), (2, (5, 0, 8))], end=(8, 6))
    found = differ(leader, follower, keeps=True)
    assert found == Difference("one", copied=((0, 4096),), place=LogPlace(5, 0, 8), offset=6)
