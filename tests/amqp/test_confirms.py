import pytest
from hypothesis import given
from hypothesis import strategies as st
from pamqp import commands, frame

from leveret.amqp.confirms import Confirms
from leveret.amqp.deliveries import Outbox
from leveret.amqp.frames import ChannelSlot


class Committing:
    """A queue that commits when the test says so."""

    def await_commit(self, waiter):
        pass


class ToldConfirms:
    """Confirms of a channel, and its answers as a client reads them."""

    def __init__(self):
        self.outbox, self._answers, self._touches = Outbox(), [], []
        self.confirms = Confirms(ChannelSlot(5, None), self.outbox, lambda: self._touches.append(1))

    def open(self, last, pending):
        self.confirms.wait_also(Committing() for _ in range(pending))
        return self.confirms.open(last)

    @property
    def answers(self):
        data = b"".join(self.outbox.take())
        while data:
            size, channel, answer = frame.unmarshal(data)
            assert channel == 5
            nack = isinstance(answer, commands.Basic.Nack)
            self._answers.append((answer.delivery_tag, answer.multiple, nack))
            data = data[size:]
        assert len(self._touches) == len(self._answers)
        return self._answers


@pytest.fixture
def told():
    return ToldConfirms()


def test_a_group_waits_for_all_its_queues(told):
    group = told.open(3, 2)
    group.done(failed=False)
    assert told.answers == []
    group.done(failed=False)
    assert told.answers == [(3, True, False)]


def test_a_group_of_nobody_is_answered_at_once(told):
    told.open(1, 0)
    assert told.answers == [(1, False, False)]


def test_one_queue_that_fails_fails_the_group(told):
    group = told.open(2, 2)
    group.done(failed=True)
    group.done(failed=False)
    assert told.answers == [(2, True, True)]


def test_a_late_group_holds_up_those_behind_it(told):
    late, second, third = (told.open(last, 1) for last in (1, 2, 5))
    second.done(failed=False)
    third.done(failed=False)
    assert told.answers == []
    late.done(failed=False)
    assert told.answers == [(5, True, False)]


def test_neighbours_of_another_fate_are_answered_apart(told):
    first, second, third = (told.open(last, 1) for last in (2, 3, 4))
    third.done(failed=False)
    second.done(failed=True)
    first.done(failed=False)
    assert told.answers == [(2, True, False), (3, True, True), (4, False, False)]


def test_nobody_hears_of_a_closed_channel(told):
    group = told.open(1, 1)
    told.confirms.forget()
    group.done(failed=False)
    assert told.answers == []


@given(
    st.lists(st.tuples(st.integers(1, 5), st.lists(st.booleans(), max_size=3)), max_size=12),
    st.randoms(use_true_random=False),
)
def test_every_tag_is_answered_once_and_rightly(groups, random):
    told = ToldConfirms()
    last, open_, expected = 0, [], {}
    for size, fates in groups:
        expected |= dict.fromkeys(range(last + 1, last + size + 1), any(fates))
        last += size
        group = told.open(last, len(fates))
        open_ += [(group, fate) for fate in fates]
        random.shuffle(open_)
        while open_ and random.random() < 0.5:
            done, fate = open_.pop()
            done.done(failed=fate)
    for group, fate in open_:
        group.done(failed=fate)
    heard, answered = {}, 0
    for tag, multiple, nack in told.answers:
        assert multiple or tag == answered + 1
        heard |= dict.fromkeys(range(answered + 1, tag + 1), nack)
        answered = tag
    assert heard == expected


def test_what_was_refused_is_answered_in_its_place(told):
    first, second = told.open(6, 1), told.open(9, 1)
    told.confirms.refuse(2, 4)
    told.confirms.refuse(6, 8)
    first.done(failed=False)
    assert told.answers == [(1, False, False), (3, True, True), (5, True, False), (6, True, True)]
    second.done(failed=False)
    assert told.answers[4:] == [(7, True, True), (9, True, False)]


@given(
    st.lists(st.tuples(st.integers(1, 5), st.booleans(), st.sets(st.integers(0, 4))), max_size=8)
)
def test_every_message_gets_its_own_answer(groups):
    told = ToldConfirms()
    wanted, opened, last = {}, [], 0
    for size, failed, refused in groups:
        tags = range(last + 1, last + size + 1)
        last += size
        wanted |= {tag: failed or i in refused for i, tag in enumerate(tags)}
        opened.append((told.open(last, 1), failed))
        for i, tag in enumerate(tags):
            if i in refused:
                told.confirms.refuse(tag, tag + 1)
    for group, failed in opened:
        group.done(failed=failed)
    heard, unanswered = {}, list(range(1, last + 1))
    for tag, multiple, nack in told.answers:
        meant = [t for t in unanswered if t <= tag] if multiple else [tag]
        heard |= dict.fromkeys(meant, nack)
        unanswered = [t for t in unanswered if t not in meant]
    assert heard == wanted


def test_answered_groups_are_not_kept_while_later_ones_wait(told):
    groups = [told.open(tag, 1) for tag in range(1, 1001)]
    for tag in range(1001, 3001):
        groups.append(told.open(tag, 1))
        groups.pop(0).done(failed=False)
    assert told.answers[-1] == (2000, False, False)
    for group in groups:
        group.done(failed=False)
    assert [tag for tag, _, _ in told.answers] == list(range(1, 3001))


def test_a_group_waits_for_whoever_commits_once(told):
    committing = Committing()
    told.confirms.wait_also([committing])
    told.confirms.wait_also([committing])
    assert told.confirms.open(2).pending == 1
    assert told.confirms.open(3).pending == 0
