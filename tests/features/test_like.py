"""LIKE against regular expressions that mean the same, and what makes those run for ages."""

import re
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leveret.features.like import PATTERN_CHARACTERS_MAX, LikePattern, PatternError

TEXTS = st.text(alphabet="ab%_\\\n", max_size=12)


def expression(pattern, escape):
    found, characters = "", iter(pattern)
    for character in characters:
        if character == escape:
            found += re.escape(next(characters))
        else:
            found += {"%": "(?s:.*)", "_": "(?s:.)"}.get(character, re.escape(character))
    return found


@given(TEXTS, TEXTS)
def test_a_pattern_matches_what_it_says(pattern, text):
    assert LikePattern(pattern).matches(text) == bool(re.fullmatch(expression(pattern, None), text))


@given(st.lists(st.sampled_from(["a", "b", "%", "_", "!%", "!_", "!!"])).map("".join), TEXTS)
def test_what_is_escaped_stands_for_itself(pattern, text):
    text = text.replace("\\", "!")
    wanted = bool(re.fullmatch(expression(pattern, "!"), text))
    assert LikePattern(pattern, "!").matches(text) == wanted


@pytest.mark.parametrize("pattern", ["a!", "!a", "%!"])
def test_an_escape_in_front_of_anything_else_is_a_mistake(pattern):
    with pytest.raises(PatternError, match="escaped"):
        LikePattern(pattern, "!")


def test_a_pattern_has_a_length():
    LikePattern("%" * PATTERN_CHARACTERS_MAX)
    with pytest.raises(PatternError, match="more than 512"):
        LikePattern("%" * (PATTERN_CHARACTERS_MAX + 1))


def test_nothing_is_tried_twice():
    begun = time.monotonic()
    assert not LikePattern("%a_" * 170 + "b").matches("a" * 100_000)
    assert not LikePattern("%" + "a" * 200 + "_b%").matches("a" * 100_000)
    assert time.monotonic() - begun < 2
