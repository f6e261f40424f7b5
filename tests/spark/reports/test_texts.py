"""Texts of reports: legible numbers, and names without what hides in them."""

from __future__ import annotations

import pytest

from leveret.spark.reports.texts import cell, quantity, visible


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [
        (0, "count", "0"),
        (1234567, "count", "1,234,567"),
        (2.5, "count", "2.50"),
        (0, "bytes", "0 B"),
        (1023, "bytes", "1,023 B"),
        (1536, "bytes", "1.5 KiB"),
        (1 << 62, "bytes", "4,096.0 PiB"),
    ],
)
def test_quantities(value, unit, text):
    assert quantity(value, unit) == text


def test_names_are_shown_without_what_is_not_seen():
    assert visible("orders.in") == "orders.in"
    assert visible("häse ✓") == "häse ✓"
    assert visible("a\x00b\nc\u202ed\ud800") == "a\ufffdb\ufffdc\ufffdd\ufffd"
    assert len(visible("x" * 1000)) == 200


def test_cells():
    assert [cell(value) for value in (None, True, 1234, "a\tb")] == ["", "yes", "1,234", "a\ufffdb"]
