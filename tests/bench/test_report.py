import pytest

from bench.measure import Reading
from bench.report import lines, markdown
from bench.rows import ROWS, Bound, Row, Target


def row(bound, number):
    return Row("name", "A title", (Target("figure", "messages/s", bound, number),))


def line(bound, number, theirs, ours):
    readings = {
        "RabbitMQ": [Reading({"figure": value}) for value in theirs],
        "Leveret": [Reading({"figure": value}) for value in ours],
    }
    return lines(row(bound, number), readings)[0]


@pytest.mark.parametrize(
    ("bound", "number", "met"),
    [
        (Bound.TIMES_AT_LEAST, 20, True),
        (Bound.TIMES_AT_LEAST, 21, False),
        (Bound.TIMES_AT_MOST, 20, True),
        (Bound.TIMES_AT_MOST, 19, False),
        (Bound.AT_MOST, 200, True),
        (Bound.AT_MOST, 199, False),
        (Bound.SHOWN, 0, None),
    ],
)
def test_targets_are_held_against_medians(bound, number, met):
    compared = line(bound, number, theirs=[10, 1, 99], ours=[200, 1, 2000])
    assert (compared.theirs, compared.ours, compared.ratio) == (10, 200, 20)
    assert compared.met is met


def test_nothing_measured_is_never_a_success():
    assert line(Bound.TIMES_AT_LEAST, 1, theirs=[], ours=[5]).met is None
    assert line(Bound.TIMES_AT_MOST, 1, theirs=[0], ours=[5]).met is None
    assert line(Bound.AT_MOST, 1, theirs=[1], ours=[]).met is None


def test_what_went_wrong_is_said():
    readings = {
        "RabbitMQ": [Reading({"figure": 1.0}, incomplete=True)],
        "Leveret": [Reading(failure="long story\nthe end")],
    }
    text = markdown(lines(row(Bound.TIMES_AT_LEAST, 1), readings), {"Fact": "true"}, {}, "How.")
    assert "- `name`: RabbitMQ: messages were left behind; Leveret: the end" in text
    assert "| messages/s | 1.000 |  |  | ≥ 1 times |  |" in text
    assert "Leveret failed" in text


def test_rows_have_names_of_their_own_and_targets():
    assert len({each.name for each in ROWS}) == len(ROWS)
    assert all(each.targets for each in ROWS)


@pytest.mark.parametrize("reached", [2, 3])
def test_what_limits_a_row_is_said_where_it_misses_its_target(reached):
    target = (Target("figure", "messages/s", Bound.TIMES_AT_LEAST, 3),)
    limited = Row("name", "A title", target, limited_by="the speed of light")
    readings = {"RabbitMQ": [Reading({"figure": 1})], "Leveret": [Reading({"figure": reached})]}
    text = markdown(lines(limited, readings), {}, {}, "")
    assert ("- `name`: the speed of light" in text) == (reached < 3)
    assert ("What limits" in text) == (reached < 3)


def test_figures_stand_beside_the_yardsticks_that_were_measured():
    target = (Target("figure", "messages/s", Bound.SHOWN),)
    beside = Row("name", "A title", target, yardsticks=("Floor", "Polling floor", "LavinMQ"))
    figures = {"Leveret": 3.0, "RabbitMQ": 1.0, "Floor": 4.0, "Polling floor": 6.0}
    readings = {name: [Reading({"figure": value})] for name, value in figures.items()}
    text = markdown(lines(beside, readings), {}, {}, "")
    assert "| Leveret / Floor | Leveret / Polling floor | Leveret / LavinMQ |" in text
    assert "| messages/s | 4.000 | 6.000 |  | 3.000 | 0.75 | 0.5 |  |" in text


def test_rows_without_yardsticks_make_one_table():
    text = markdown([line(Bound.SHOWN, 0, theirs=[1], ours=[2])], {}, {}, "")
    assert "Leveret /" not in text
