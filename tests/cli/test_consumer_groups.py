"""`leveret group`: how a reader says where it is, and how a group is moved."""

import pytest
import typer

from leveret.cli import consumer_groups

ROWS = [{"partition": 0, "before": 3, "after": 9}]


@pytest.fixture
def asked(monkeypatch):
    """Return what the node was asked, and what was shown."""
    asked = []
    monkeypatch.setattr(
        consumer_groups, "ask", lambda operation, **given: asked.append((operation, given)) or ROWS
    )
    monkeypatch.setattr(consumer_groups, "show_rows", lambda *shown: asked.append(shown))
    return asked


def test_offsets_are_committed_by_partition(asked):
    consumer_groups.commit_offsets("views", "spark", ["0=9", "12=0"])
    offsets = {"0": 9, "12": 0}
    assert asked == [
        (
            "group.commit_offsets",
            {"vhost": "/", "queue": "views", "name": "spark", "offsets": offsets},
        ),
        (ROWS, ["partition", "before", "after"]),
    ]


@pytest.mark.parametrize(("partition", "asked_for"), [(None, None), ([0, 2], [0, 2])])
def test_offsets_are_reset_in_all_partitions_or_in_some(asked, partition, asked_for):
    consumer_groups.reset_offsets("views", "g", "first", partition)
    assert asked[0] == (
        "group.reset_offsets",
        {
            "vhost": "/",
            "queue": "views",
            "name": "g",
            "to": "first",
            "partitions": asked_for,
            "dry_run": False,
        },
    )


@pytest.mark.parametrize(
    "text", ["", "0", "0=", "0=x", "0=-1", "0=1=2", "0=\u00b2", "0=" + "9" * 20]
)
def test_what_is_no_offset_of_a_partition_is_refused(asked, capsys, text):
    with pytest.raises(typer.Exit):
        consumer_groups.commit_offsets("views", "spark", [text])
    assert f"where to go on is PARTITION=OFFSET, not {text!r}" in capsys.readouterr().err
    assert asked == []


def test_a_partition_is_given_once(asked, capsys):
    with pytest.raises(typer.Exit):
        consumer_groups.commit_offsets("views", "spark", ["0=1", "0=2"])
    assert "partition 0 is given twice" in capsys.readouterr().err
