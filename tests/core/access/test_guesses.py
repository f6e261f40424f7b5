"""Guessing of passwords: its author waits longer and longer, and nobody else does."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leveret.core.access import guesses as module
from leveret.core.access.guesses import FREE_GUESSES, WAIT_MS_MAX, Guarded, Guesses
from leveret.ports.authentication import Login, TooManyGuessesError

HERE, THERE = "192.0.2.1", "192.0.2.2"
DELAY_MS = 3000


class Desk:
    """Knows one user, and counts what it is asked."""

    def __init__(self, user="u", password="good"):
        self.asked = 0
        self.user, self.password = user, password
        self.now = 1_700_000_000_000
        self.guesses = Guesses(DELAY_MS)
        self.guarded = Guarded([self], self.guesses, b"k" * 32, lambda: self.now)

    async def log_in(self, login):
        self.asked += 1
        return self if (login.user, login.password) == (self.user, self.password) else None

    async def say(self, password, user="u", host=HERE):
        try:
            return await self.guarded.log_in(Login(user, password, host)) is not None
        except TooManyGuessesError as error:
            return error.wait_ms

    async def guess(self, count, **who):
        return [await self.say(f"bad{number}", **who) for number in range(count)]


@pytest.fixture
def desk():
    return Desk()


async def test_some_guesses_are_free_and_the_next_ones_wait_for_longer_and_longer(desk):
    assert await desk.guess(FREE_GUESSES + 1) == [False] * FREE_GUESSES + [DELAY_MS]
    waits = []
    for _ in range(6):
        waits.append(await desk.say("bad"))
        desk.now += waits[-1]
        assert await desk.say("bad") is False
    assert waits == [3000, 6000, 12_000, 24_000, 48_000, WAIT_MS_MAX]


async def test_who_has_to_wait_is_not_even_asked(desk):
    await desk.guess(100)
    assert desk.asked == FREE_GUESSES
    assert await desk.say("good") == DELAY_MS
    desk.now += DELAY_MS
    assert await desk.say("good") is True
    assert await desk.say("bad") is False  # and it begins anew


async def test_others_are_not_kept_out(desk):
    await desk.guess(100)
    assert await desk.say("good", host=THERE) is True
    assert await desk.say("x", user="other") is False


async def test_who_was_let_in_before_is_let_in_again(desk):
    assert await desk.say("good", host=THERE) is True
    await desk.guess(100)
    assert await desk.say("good") is True


async def test_a_proof_that_is_not_right_any_more_is_a_guess_like_any_other(desk):
    assert await desk.say("good") is True
    desk.password = "changed"
    assert await desk.say("good") is False
    await desk.guess(100)
    assert await desk.say("changed") == DELAY_MS


def test_guesses_at_the_same_moment_count_before_they_are_answered():
    guesses = Guesses(DELAY_MS)
    waits = [guesses.begin(HERE, "u", f"bad{number}", 0) for number in range(200)]
    tried = waits.count(0)
    assert tried == module.UNDER_WAY_MAX
    for number in range(tried):
        guesses.end(HERE, "u", f"bad{number}", 1, accepted=False)
    assert guesses.begin(HERE, "u", "x", 1) == WAIT_MS_MAX


def test_a_fleet_that_says_the_same_comes_in_together():
    guesses = Guesses(DELAY_MS)
    assert {guesses.begin(HERE, "fleet", "good", 0) for _ in range(5000)} == {0}
    for _ in range(5000):
        guesses.end(HERE, "fleet", "good", 1, accepted=True)
    assert len(guesses) == 0


def test_behind_wrong_ones_there_is_one_at_a_time():
    guesses = Guesses(DELAY_MS)
    for _ in range(FREE_GUESSES):
        assert guesses.begin(HERE, "u", "bad", 0) == 0
        guesses.end(HERE, "u", "bad", 0, accepted=False)
    assert guesses.begin(HERE, "u", "one", DELAY_MS) == 0
    assert guesses.begin(HERE, "u", "two", DELAY_MS) == DELAY_MS


def test_memory_is_bounded_and_guesses_are_forgotten():
    guesses = Guesses(DELAY_MS)
    for number in range(module.PLACES_MAX + 100):
        guesses.begin(HERE, f"user{number}", "bad", 0)
        guesses.end(HERE, f"user{number}", "bad", 0, accepted=False)
    assert len(guesses) == module.PLACES_MAX
    for _ in range(FREE_GUESSES):
        guesses.begin(HERE, "u", "bad", 0)
        guesses.end(HERE, "u", "bad", 0, accepted=False)
    assert guesses.begin(HERE, "u", "bad", 1) > 0
    assert guesses.begin(HERE, "u", "bad", module.FORGOTTEN_MS) == 0


def test_without_a_delay_nobody_waits():
    guesses = Guesses(0)
    for _ in range(100):
        assert guesses.begin(HERE, "u", "bad", 0) == 0
        guesses.end(HERE, "u", "bad", 0, accepted=False)


@given(st.lists(st.tuples(st.integers(0, 3), st.booleans(), st.integers(-(10**7), 10**7))))
def test_nobody_waits_for_longer_than_a_minute(steps):
    guesses, now = Guesses(DELAY_MS), 10**12
    for proof, accepted, passed in steps:
        now += passed
        wait = guesses.begin(HERE, "u", str(proof), now)
        assert 0 <= wait <= WAIT_MS_MAX
        if not wait:
            guesses.end(HERE, "u", str(proof), now, accepted=accepted)


async def test_a_token_says_nothing_of_the_name_that_is_claimed(desk):
    desk.user, asked = "", desk

    class Tokens:
        user = "service"

        async def log_in(self, login):
            asked.asked += 1
            return self if login.password.startswith("token") else None

    desk.guarded = Guarded([Tokens()], desk.guesses, b"k" * 32, lambda: desk.now)
    for number in range(100):
        assert await desk.say(f"token{number}", user="") is True
    await desk.guess(FREE_GUESSES, user="")
    assert await desk.say("token101", user="") == DELAY_MS
