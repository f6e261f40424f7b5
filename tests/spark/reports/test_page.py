"""The page of a report: well-formed, self-contained, and foreign text stays text."""

from __future__ import annotations

import datetime as dt
import re
from html.parser import HTMLParser

import pytest

from leveret.spark.reports.charts import column_chart, line_chart, ranking
from leveret.spark.reports.page import Report, ReportSection, ReportTable, render

NOW = dt.datetime(2026, 1, 5, 9, 30, tzinfo=dt.UTC)
HOSTILE = [
    "<script>alert(1)</script>",
    '"><img src=x onerror=alert(1)>',
    "</title></svg></style><b>",
    "'; DROP TABLE--",
    "{{ 7 * 7 }}{% raw %}",
    "javascript:alert(1)",
    "a\x00\u202e\ud800",
]
VOID = {"meta", "rect", "line", "circle", "path"}


class Elements(HTMLParser):
    """Elements of a page with their attributes; what is opened must be closed."""

    def __init__(self, text):
        super().__init__()
        self.found, self._open = [], []
        self.feed(text)
        self.close()
        assert self._open == []

    def handle_starttag(self, tag, attrs):
        self.found.append((tag, dict(attrs)))
        if tag not in VOID:
            self._open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.found.append((tag, dict(attrs)))

    def handle_endtag(self, tag):
        if tag not in VOID:
            assert self._open.pop() == tag


def page(name):
    chart = column_chart(name, name, [name, "b"], {name: [1, 2]})
    lines = line_chart(name, name, [name, "b"], {name: [1, 2]})
    table = ReportTable(name, [name, "n"], [[name, 1], [None, 2]], frozenset({1}))
    section = ReportSection(name, name, [chart, lines], [ranking(name, name, [(name, 5)])], [table])
    return render(Report(name, NOW, [(name, name)], [(name, name)], [section]))


def elements_without_names(text):
    """Return tags and those attributes that are no names of ours."""
    return [
        (tag, sorted(attributes)) for tag, attributes in Elements(text).found if tag != "circle"
    ]


@pytest.mark.parametrize("name", HOSTILE)
def test_names_stay_text(name):
    text = page(name)
    text.encode()
    assert elements_without_names(text) == elements_without_names(page("plain"))


def test_the_page_needs_nothing_else_and_runs_nothing():
    text = page("plain")
    found = Elements(text).found
    assert not {tag for tag, _ in found} & {"script", "link", "img", "iframe", "object"}
    for _, attributes in found:
        assert not {name for name in attributes if name.startswith("on")}
        assert not {"src", "href"} & set(attributes)
    assert "default-src 'none'" in text
    assert not re.search(r"url\(|@import|https?:", text)


def test_charts_are_described_and_have_a_table():
    found = Elements(page("plain")).found
    ids = {attributes["id"] for _, attributes in found if "id" in attributes}
    drawings = [a for tag, a in found if tag == "svg" and a.get("role") == "img"]
    assert len(drawings) == 2
    for attributes in drawings:
        assert set(attributes["aria-labelledby"].split()) <= ids
    assert [tag for tag, _ in found].count("table") == 4
    assert ("tr", {"class": "marked"}) in found


def test_both_themes_have_all_colours():
    light, dark = re.findall(r":root \{(.*?)\}", page("plain"), re.DOTALL)
    names = [set(re.findall(r"--[\w-]+", each)) for each in (light, dark)]
    assert names[0] == names[1]


def test_long_tables_are_cut():
    table = ReportTable("t", ["n"], [[n] for n in range(2000)])
    text = render(Report("r", NOW, sections=[ReportSection("s", tables=[table])]))
    assert "The first 500 of 2,000 rows" in text
    assert text.count("<td") == 500


def test_empty_reports_say_so():
    section = ReportSection(
        "s", "", [column_chart("c", "hour", [], {})], [ranking("r", "Queue", [])]
    )
    assert render(Report("r", NOW, sections=[section])).count("Nothing to show.") == 2
