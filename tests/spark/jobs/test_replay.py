"""Arguments of the jobs `replay` and `archive`."""

from __future__ import annotations

import pytest

from leveret.spark.jobs.archive import topic_names
from leveret.spark.jobs.replay import read_ranges
from leveret.spark.option_reader import OptionError


def test_offsets_are_ranges_by_partition():
    assert read_ranges('{"0": [100, 200], "3": [0, 0]}') == {0: (100, 200), 3: (0, 0)}


@pytest.mark.parametrize(
    "text",
    [
        *("", "x", "5", "{}", "[]", '{"a": [1, 2]}', '{"0": 5}', '{"0": [1]}', '{"0": [2, 1]}'),
        *('{"0": [-1, 1]}', '{"-1": [1, 2]}', '{"0": [1, 2.5]}', '{"0": [true, 2]}', "[" * 100_000),
    ],
)
def test_other_offsets_are_refused(text):
    with pytest.raises(OptionError, match="must be like"):
        read_ranges(text)


def test_topics_are_named_once():
    assert topic_names(" a,b, a") == ["a", "b"]
    with pytest.raises(OptionError, match="empty name"):
        topic_names("a,,b")
