"""LIKE against regular expressions that mean the same, and what makes those run for ages."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leveret.features.filters.like import (
    PATTERN_CHARACTERS_MAX,
    TEXT_CHARACTERS_MAX,
    LikePattern,
    LikePatternError,
)

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
    with pytest.raises(LikePatternError, match="escaped"):
        LikePattern(pattern, "!")


def test_a_pattern_has_a_length():
    LikePattern("%" * PATTERN_CHARACTERS_MAX)
    with pytest.raises(LikePatternError, match="more than 512"):
        LikePattern("%" * (PATTERN_CHARACTERS_MAX + 1))


WIDE = st.text(alphabet="aé☃😀", max_size=300)


@given(st.lists(st.sampled_from(["a" * 70, "é", "☃", "😀", "_", "_" * 65, "%"])), WIDE)
def test_pieces_of_any_length_and_characters_of_any_width(parts, text):
    pattern = "".join(parts)[:PATTERN_CHARACTERS_MAX]
    assert LikePattern(pattern).matches(text) == bool(re.fullmatch(expression(pattern, None), text))
    fitting = pattern.replace("%", "aé").replace("_", "☃")
    assert LikePattern(pattern).matches(fitting)


def test_a_text_that_is_too_long_is_neither_like_a_pattern_nor_unlike_it():
    assert LikePattern("%a").matches("a" * TEXT_CHARACTERS_MAX) is True
    assert LikePattern("%a").matches("a" * (TEXT_CHARACTERS_MAX + 1)) is None
