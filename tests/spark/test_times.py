"""Times in options, and on the command lines of jobs."""

from __future__ import annotations

import pytest

from leveret.spark.option_reader import OptionError, time_ms


@pytest.mark.parametrize(
    "text", ["1767605400000", "2026-01-05T09:30:00Z", "2026-01-05T10:30+01:00", "2026-01-05 09:30"]
)
def test_times_are_utc_unless_they_say_otherwise(text):
    assert time_ms(text) == 1767605400000


@pytest.mark.parametrize("text", ["yesterday", "", "-1", "2026-13-01"])
def test_other_texts_are_refused(text):
    with pytest.raises(OptionError, match="is no time"):
        time_ms(text)


def test_milliseconds_are_exact_and_none_is_before_1970():
    assert time_ms("2026-01-05T09:30:00.123Z") == 1767605400123
    assert time_ms("1969-12-31") == 0
