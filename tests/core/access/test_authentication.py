"""Logging in, and what rights are asked for."""

import pytest

from leveret.core.access.authentication import answered, log_in
from leveret.errors import ChannelError
from leveret.ports.authentication import Login, UnansweredError


class Source:
    """Lets one user in, and remembers whom it was asked about."""

    def __init__(self, user):
        self.user, self.asked = user, []

    async def log_in(self, login):
        self.asked.append(login.user)
        return self if login.user == self.user else None


def run(coroutine):
    with pytest.raises(StopIteration) as stopped:
        coroutine.send(None)
    return stopped.value.value


@pytest.mark.covers("B-408")
def test_the_first_source_that_accepts_decides():
    sources = [Source("a"), Source("b"), Source("b")]
    assert run(log_in(sources, Login("b", "secret", "127.0.0.1"))) is sources[1]
    assert [source.asked for source in sources] == [["b"], ["b"], []]
    assert run(log_in(sources, Login("c", "secret", "127.0.0.1"))) is None


def test_what_must_be_asked_for_is_asked_and_then_the_question_is_put_again():
    known = []

    async def ask():
        known.append(True)

    def question():
        if not known:
            raise UnansweredError(ask)
        return "yes"

    assert run(answered(question)) == "yes"
    assert known == [True]


def test_a_refusal_is_passed_on():
    def question():
        raise ChannelError(403, "no")

    with pytest.raises(ChannelError, match="no"):
        answered(question).send(None)
