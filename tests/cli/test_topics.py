"""`leveret topic offsets`: which offsets of a topic can be read."""

import pytest

from leveret.cli import topics

ROWS = [{"partition": 0, "first": 3, "end": 9, "offset": 5}]


@pytest.mark.parametrize(
    ("at", "time_ms", "columns"),
    [
        (None, None, ["partition", "first", "end"]),
        ("1000", 1000, ["partition", "first", "end", "offset"]),
        ("1970-01-01T00:00:02", 2000, ["partition", "first", "end", "offset"]),
    ],
)
def test_offsets_are_shown_and_that_of_a_time(monkeypatch, at, time_ms, columns):
    asked, shown = [], []
    monkeypatch.setattr(topics, "ask", lambda name, **given: asked.append((name, given)) or ROWS)
    monkeypatch.setattr(topics, "show_rows", lambda rows, names: shown.append((rows, names)))
    topics.offsets("views", at, "/")
    assert asked == [("topic.offsets", {"vhost": "/", "queue": "views", "time_ms": time_ms})]
    assert shown == [(ROWS, columns)]
