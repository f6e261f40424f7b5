"""Charts: positions that say what the numbers say, however large, odd or many these are."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leveret.spark.reports.charts import (
    BASE,
    LEFT,
    OTHERS,
    SERIES_MAX,
    TOP,
    WIDTH,
    column_chart,
    line_chart,
    ranking,
)

VALUES = st.integers(0, 1 << 62)
TABLES = st.integers(1, 40).flatmap(
    lambda width: st.dictionaries(
        st.text(max_size=8), st.lists(VALUES, min_size=width, max_size=width), max_size=9
    )
)


@given(TABLES, st.sampled_from(["count", "bytes"]))
def test_everything_is_inside_of_the_drawing(values, unit):
    width = max((len(each) for each in values.values()), default=0)
    chart = column_chart("t", "hour", [f"h{n}" for n in range(width)], values, unit)
    assert len(chart.series) == len(chart.drawn) <= SERIES_MAX
    for series in chart.drawn:
        for column in series.columns:
            assert column.x >= LEFT
            assert column.x + column.width <= WIDTH + 0.1
            assert column.y >= TOP - 0.2
            assert column.y + column.height <= BASE + 0.2
    assert all(TOP - 0.1 <= tick.at <= BASE for tick in chart.value_ticks)
    assert len(chart.value_ticks) <= 12
    assert sum(sum(series.values) for series in chart.series) == sum(map(sum, values.values()))


def test_columns_are_stacked_and_in_proportion():
    chart = column_chart("t", "hour", ["a", "b"], {"low": [10, 0], "high": [30, 40]})
    high, low = chart.drawn
    assert [series.name for series in chart.series] == ["high", "low"]
    assert high.columns[0].height == pytest.approx(3 * low.columns[0].height, abs=0.2)
    assert high.columns[0].y == pytest.approx(low.columns[0].y + low.columns[0].height, abs=0.2)
    assert high.columns[1].y == TOP  # 40 is at the top of the scale
    assert len(low.columns) == 1  # nothing is drawn for 0
    assert low.columns[0].title == "a, low: 10"


def test_a_little_is_seen_beside_much():
    chart = column_chart("t", "hour", ["a"], {"much": [10**9], "little": [1]})
    assert chart.drawn[1].columns[0].height >= 1


def test_the_smallest_series_are_summed_up():
    chart = column_chart("t", "hour", ["a"], {f"q{n}": [n] for n in range(1, 11)})
    assert [series.name for series in chart.series] == ["q10", "q9", "q8", "q7", "q6", OTHERS]
    assert chart.series[-1].values == [1 + 2 + 3 + 4 + 5]


def test_a_line_has_a_point_for_each_category():
    chart = line_chart("t", "minute", ["a", "b", "c"], {"x": [0, 5, 10]})
    (line,) = chart.drawn
    assert line.path.startswith("M")
    assert line.path.count("L") == 2
    assert [point.y for point in line.points] == [BASE, (BASE + TOP) / 2, TOP]


def test_ticks_do_not_overlap():
    hours = [f"2026-01-{1 + n // 24:02d} {n % 24:02d}:00" for n in range(24 * 30)]
    ticks = column_chart("t", "hour", hours, {"x": [1] * len(hours)}).category_ticks
    assert len(ticks) >= 2
    gaps = [after.at - before.at for before, after in itertools.pairwise(ticks)]
    assert min(gaps) > 16 * 7


def test_a_chart_describes_itself():
    chart = column_chart("Messages", "hour", ["09:00", "10:00"], {"q": [1, 5], "r": [1, 0]})
    assert chart.description == (
        "Messages, by hour, from 09:00 to 10:00: 7 in all, at most 5 at 10:00"
    )
    assert chart.rows == [["09:00", "1", "1"], ["10:00", "5", "0"]]
    assert column_chart("Messages", "hour", [], {}).description == "Messages: nothing to show"


def test_a_ranking_has_the_highest_and_sums_up_the_rest():
    found = ranking("t", "Queue", [(f"q{n}", n) for n in range(20)], rows_max=3)
    assert [(row.name, row.value, row.share) for row in found.rows] == [
        ("q19", "19", 100),
        ("q18", "18", 94.74),
        ("q17", "17", 89.47),
    ]
    assert found.others == "17 more: 136"
    assert ranking("t", "Queue", [("a", 0)]).rows[0].share == 0
