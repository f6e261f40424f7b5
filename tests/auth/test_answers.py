"""Answers that are remembered for a while."""

from leveret.auth.answers import Answers


class Clock:
    now = 0.0

    def __call__(self):
        return self.now


def test_answers_last_and_refusals_shorter():
    clock = Clock()
    answers = Answers(10, clock)
    answers.put("may?", True)
    answers.put("must?", False)
    clock.now = 1.9
    assert answers.get("may?") is True
    assert answers.get("must?") is False
    clock.now = 2.0
    assert answers.get("must?") is None
    clock.now = 9.9
    assert answers.get("may?") is True
    clock.now = 10.0
    assert answers.get("may?") is None
    assert answers.get("what?") is None
    assert len(answers) == 0


def test_only_so_many_are_remembered():
    answers = Answers(10, Clock(), entries_max=2)
    for question in "abca":
        answers.put(question, True)
    assert [answers.get(question) for question in "abc"] == [True, None, True]
