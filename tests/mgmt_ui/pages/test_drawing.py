"""How messages flow through an exchange, and how far groups are, as boxes, lines and bars."""

import pytest

from leveret.mgmt_ui.pages.drawing import (
    KEY_CHARACTERS_MAX,
    LAG_WIDTH,
    LAG_WIDTH_MIN,
    ROWS_MAX,
    draw,
    lag_bars,
    partition_bars,
)


def binding(source="x", destination="q", kind="queue", key=""):
    return {
        "source": source,
        "destination": destination,
        "destination_type": kind,
        "routing_key": key,
    }


def texts(drawing):
    return [box.text for box in drawing.boxes]


def test_an_exchange_by_itself():
    drawing = draw("/", "", [], [])
    assert texts(drawing) == ["(default)"]
    assert drawing.boxes[0].is_here
    assert drawing.edges == []


def test_sources_stand_left_and_destinations_right():
    drawing = draw("/", "x", [binding("a", "x", "exchange")], [binding(), binding("x", "q2")])
    here, source, *targets = drawing.boxes
    assert source.x < here.x < targets[0].x == targets[1].x
    assert [box.address for box in drawing.boxes] == [
        "",
        "/exchanges/%2F/a",
        "/queues/%2F/q",
        "/queues/%2F/q2",
    ]


def test_one_line_for_all_keys_between_two_ends():
    keys = [binding(key=key) for key in ("b", "a", "c", "a", "")]
    (edge,) = draw("/", "x", [], keys).edges
    assert (edge.text, edge.title) == ("a +2", "a, b, c")


def test_long_names_and_keys_are_cut_and_told_in_full():
    drawing = draw("/", "x", [], [binding(destination="q" * 200, key="k" * 200)])
    assert len(drawing.boxes[1].text) < 40
    assert drawing.boxes[1].title == "queue " + "q" * 200
    assert len(drawing.edges[0].text) == KEY_CHARACTERS_MAX


def test_everything_is_within_and_many_are_counted():
    drawing = draw("/", "x", [], [binding(destination=f"q{n}") for n in range(500)])
    assert texts(drawing)[-1] == f"and {500 - ROWS_MAX} more"
    assert len(drawing.edges) == ROWS_MAX
    for box in drawing.boxes:
        assert 0 <= box.x <= drawing.width - drawing.box_width
        assert 0 <= box.y <= drawing.height - drawing.box_height


def kept(first, end, lag=0, unacked=0):
    return {"first": first, "end": end, "lag": lag, "unacked": unacked}


def test_bars_of_partitions_have_one_scale():
    long, short, empty = lag_bars([kept(100, 500, 200, 100), kept(0, 200, 200), kept(7, 7)])
    parts = [LAG_WIDTH / 2, LAG_WIDTH / 4, LAG_WIDTH / 4]
    assert [long.read, long.unacked, long.waiting] == parts
    assert [short.read, short.unacked, short.waiting] == [0, 0, LAG_WIDTH / 2]
    assert (empty.read, empty.waiting) == (0, 0)
    assert long.title == "200 of 400 messages kept are not acknowledged"
    assert lag_bars([]) == []


@pytest.mark.parametrize("unacked", [0, 1])
def test_a_single_message_is_seen_in_a_long_bar(unacked):
    [bar] = lag_bars([kept(0, 10_000_000, 1, unacked)])
    assert bar.unacked + bar.waiting == LAG_WIDTH_MIN
    assert bar.read == LAG_WIDTH - LAG_WIDTH_MIN


def test_more_lag_than_there_is_stays_within_its_bar():
    [bar] = lag_bars([kept(10, 20, 50, 60)])
    assert (bar.read, bar.unacked, bar.waiting) == (0, LAG_WIDTH, 0)


def held(messages, unacked=0, first=0, end=0):
    return {"messages": messages, "unacked": unacked, "first": first, "end": end}


def test_bars_of_a_topic_are_as_long_as_what_partitions_hold():
    full, half, empty = partition_bars(
        [held(75, 25, 0, 900), held(50, 0, 7, 57), held(0, 0, 9, 9)], keeps=False
    )
    assert (full.read, full.unacked, full.waiting) == (0, LAG_WIDTH / 4, LAG_WIDTH * 3 / 4)
    assert (half.unacked, half.waiting) == (0, LAG_WIDTH / 2)
    assert (empty.read, empty.unacked, empty.waiting) == (0, 0, 0)
    assert full.title == "75 ready, 25 unacknowledged"
    assert partition_bars([], keeps=True) == []


def test_bars_of_a_topic_have_what_its_retention_keeps():
    [bar] = partition_bars([held(25, 25, 100, 200)], keeps=True)
    assert (bar.read, bar.unacked, bar.waiting) == (LAG_WIDTH / 2, LAG_WIDTH / 4, LAG_WIDTH / 4)
    assert bar.title.endswith("50 kept to be read again")
