import pytest
from hypothesis import given
from hypothesis import strategies as st

from leveret.amqp.confirms import Confirms


@pytest.fixture
def answers():
    return []


@pytest.fixture
def confirms(answers):
    return Confirms(lambda *answer: answers.append(answer))


def test_a_group_waits_for_all_its_queues(confirms, answers):
    group = confirms.open(3, 2)
    group.done(failed=False)
    assert answers == []
    group.done(failed=False)
    assert answers == [(3, True, False)]


def test_a_group_of_nobody_is_answered_at_once(confirms, answers):
    confirms.open(1, 0)
    assert answers == [(1, False, False)]


def test_one_queue_that_fails_fails_the_group(confirms, answers):
    group = confirms.open(2, 2)
    group.done(failed=True)
    group.done(failed=False)
    assert answers == [(2, True, True)]


def test_a_late_group_holds_up_those_behind_it(confirms, answers):
    late, second, third = (confirms.open(last, 1) for last in (1, 2, 5))
    second.done(failed=False)
    third.done(failed=False)
    assert answers == []
    late.done(failed=False)
    assert answers == [(5, True, False)]


def test_neighbours_of_another_fate_are_answered_apart(confirms, answers):
    first, second, third = (confirms.open(last, 1) for last in (2, 3, 4))
    third.done(failed=False)
    second.done(failed=True)
    first.done(failed=False)
    assert answers == [(2, True, False), (3, True, True), (4, False, False)]


def test_nobody_hears_of_a_closed_channel(confirms, answers):
    group = confirms.open(1, 1)
    confirms.forget()
    group.done(failed=False)
    confirms.open(2, 0)
    assert answers == []


@given(
    st.lists(st.tuples(st.integers(1, 5), st.lists(st.booleans(), max_size=3)), max_size=12),
    st.randoms(use_true_random=False),
)
def test_every_tag_is_answered_once_and_rightly(groups, random):
    heard = {}
    answered = 0

    def answer(tag, multiple, nack):
        nonlocal answered
        assert multiple or tag == answered + 1
        for each in range(answered + 1, tag + 1):
            heard[each] = nack
        answered = tag

    confirms = Confirms(answer)
    last, open_, expected = 0, [], {}
    for size, fates in groups:
        expected |= dict.fromkeys(range(last + 1, last + size + 1), any(fates))
        last += size
        group = confirms.open(last, len(fates))
        open_ += [(group, fate) for fate in fates]
        random.shuffle(open_)
        while open_ and random.random() < 0.5:
            done, fate = open_.pop()
            done.done(failed=fate)
    for group, fate in open_:
        group.done(failed=fate)
    assert heard == expected


def test_what_was_refused_is_answered_in_its_place(confirms, answers):
    first, second = confirms.open(6, 1), confirms.open(9, 1)
    confirms.refuse(2, 4)
    confirms.refuse(6, 8)
    first.done(failed=False)
    assert answers == [(1, False, False), (3, True, True), (5, True, False), (6, True, True)]
    second.done(failed=False)
    assert answers[4:] == [(7, True, True), (9, True, False)]


@given(
    st.lists(st.tuples(st.integers(1, 5), st.booleans(), st.sets(st.integers(0, 4))), max_size=8)
)
def test_every_message_gets_its_own_answer(groups):
    answers = []
    confirms = Confirms(lambda *answer: answers.append(answer))
    wanted, opened, last = {}, [], 0
    for size, failed, refused in groups:
        tags = range(last + 1, last + size + 1)
        last += size
        wanted |= {tag: failed or i in refused for i, tag in enumerate(tags)}
        opened.append((confirms.open(last, 1), failed))
        for i, tag in enumerate(tags):
            if i in refused:
                confirms.refuse(tag, tag + 1)
    for group, failed in opened:
        group.done(failed=failed)
    heard, unanswered = {}, list(range(1, last + 1))
    for tag, multiple, nack in answers:
        meant = [t for t in unanswered if t <= tag] if multiple else [tag]
        heard |= dict.fromkeys(meant, nack)
        unanswered = [t for t in unanswered if t not in meant]
    assert heard == wanted
