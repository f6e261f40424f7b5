"""Files of reports: CSV as spreadsheets read it, and texts that replace earlier ones."""

from __future__ import annotations

import csv
import datetime as dt
import io

import pytest

from leveret.spark.jobs.job import JobError
from leveret.spark.jobs.report_files import csv_text, write_text


def test_csv_is_read_back():
    rows = [("a,b", 1), ('say "x"', None), ("two\nlines", 2.5), ("häse", True)]
    text = csv_text(["name", "value"], rows)
    assert text.startswith("\ufeff")
    found = list(csv.reader(io.StringIO(text.removeprefix("\ufeff"), newline="")))
    assert found == [
        ["name", "value"],
        ["a,b", "1"],
        ['say "x"', ""],
        ["two\nlines", "2.5"],
        ["häse", "True"],
    ]


@pytest.mark.parametrize("name", ["=1+1", "+1", "-1", "@SUM(A1)", "\t=1", "\r=1"])
def test_no_name_is_a_formula(name):
    text = csv_text(["name"], [(name,)])
    assert next(csv.reader(io.StringIO(text.split("\r\n", 1)[1], newline="")))[0] == f"'{name}"


def test_numbers_below_zero_stay_numbers():
    assert csv_text(["n"], [(-5,)]).endswith("\r\n-5\r\n")


def test_times_are_in_utc():
    noon = dt.datetime(2026, 1, 5, 12, tzinfo=dt.timezone(dt.timedelta(hours=3)))
    local = noon.astimezone().replace(tzinfo=None)  # as Spark returns it
    assert csv_text(["t"], [(noon,), (local,)]).count("\r\n2026-01-05 09:00:00") == 2


def test_half_characters_are_replaced():
    assert csv_text(["name"], [("a\ud800",)]).encode().endswith(b"\r\na?\r\n")


def test_a_text_replaces_the_one_that_is_there(tmp_path):
    for text in ("one", "two"):
        write_text(None, str(tmp_path / "new"), "page.html", text)
    assert [each.name for each in (tmp_path / "new").iterdir()] == ["page.html"]
    assert (tmp_path / "new" / "page.html").read_text() == "two"


def test_a_directory_that_is_a_file_is_an_error(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(JobError, match="cannot be written"):
        write_text(None, str(tmp_path / "file"), "page.html", "x")
