"""Points of charts, of what was sampled."""

import pytest

from leveret.core.statistics.series import SampleRetention, Series
from leveret.core.statistics.statistics import Statistics
from leveret.mgmt_ui.pages.charts import Period
from leveret.mgmt_ui.pages.histories import (
    chart_of_lengths,
    chart_of_rates,
    latest_lengths,
    latest_rates,
    quantile,
)

LINES = {"In": ("publish",), "Out": ("deliver", "get")}
PERIOD = Period("minute", "Minute", 60)
START = 1_700_000_000_000


def sampled(*samples, now=None):
    """Statistics of a node, of (second, counters)."""
    statistics = Statistics()
    series = statistics.node_counters.series = Series((SampleRetention(60_000, 5_000),))
    for second, values in samples:
        series.add(START + second * 1000, values)
        statistics.tick_ms = START + second * 1000
        statistics.interval_ms = 5_000
    if now is not None:
        statistics.tick_ms = START + now * 1000
    return statistics


def points(chart):
    return [((time_ms - START) / 1000, values) for time_ms, values in chart.points]


def test_rates_are_what_moved_between_samples():
    statistics = sampled(
        (0, {"publish": 10}),
        (5, {"publish": 60, "deliver": 5}),
        (10, {"publish": 60, "deliver": 5, "get": 10}),
    )
    chart = chart_of_rates(statistics, None, LINES, PERIOD)
    assert points(chart) == [(5, (10, 1)), (10, (0, 2))]
    assert chart.labels == ("In", "Out")


def test_rest_is_nothing_per_second():
    statistics = sampled((0, {"publish": 0}), (5, {"publish": 5}), (30, {"publish": 10}), now=50)
    assert points(chart_of_rates(statistics, None, LINES, PERIOD)) == [
        (5, (1, 0)),
        (10, (0, 0)),
        (25, (0, 0)),
        (30, (1, 0)),
        (35, (0, 0)),
        (50, (0, 0)),
    ]


def test_lengths_stay_while_nothing_moves():
    statistics = sampled((0, {"messages_ready": 3}), (30, {"messages_unacknowledged": 2}), now=40)
    assert points(chart_of_lengths(statistics, None, PERIOD)) == [
        (0, (3, 0)),
        (25, (3, 0)),
        (30, (0, 2)),
        (40, (0, 2)),
    ]


def test_lengths_of_a_queue_that_rests_for_longer_than_is_shown():
    statistics = sampled((0, {"messages_ready": 3}), now=500)
    assert points(chart_of_lengths(statistics, None, PERIOD)) == [(440, (3, 0)), (500, (3, 0))]


def test_nothing_was_sampled():
    statistics = Statistics()
    assert chart_of_rates(statistics, None, LINES, PERIOD).points == []
    assert chart_of_lengths(statistics, None, PERIOD).points == []
    assert "unknown" in chart_of_lengths(statistics, None, PERIOD).description


def test_latest_points():
    statistics = sampled((0, {"publish": 10}), (5, {"publish": 60, "deliver": 5}))
    assert latest_rates(statistics, None, LINES) == [START / 1000 + 5, 10, 1]
    counts = {"messages": 3, "messages_ready": 1, "messages_unacknowledged": 2}
    assert latest_lengths(statistics, counts) == [START / 1000 + 5, 1, 2]


@pytest.mark.parametrize(
    ("counts", "part", "value"),
    [
        ((0, 0, 0, 0), 0.5, None),
        ((10, 0, 0, 0), 0.5, 0.5),
        ((10, 10, 0, 0), 0.5, 1),
        ((10, 10, 0, 0), 0.75, 1.5),
        ((0, 0, 10, 0), 0.99, 4.97),
        ((0, 0, 0, 10), 0.5, 5),
    ],
)
def test_quantiles(counts, part, value):
    found = quantile((1, 2, 5), counts, part)
    assert found == (None if value is None else pytest.approx(value))


def test_a_sample_at_the_beginning_stands_there_alone():
    statistics = sampled(
        (0, {"messages_ready": 7}), (5, {"messages_ready": 2}), (65, {"messages_ready": 3})
    )
    chart = chart_of_lengths(statistics, None, PERIOD)
    assert points(chart) == [(5, (2, 0)), (60, (2, 0)), (65, (3, 0))]
