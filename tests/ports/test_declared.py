"""Errors for fields that nobody declares."""

import pytest

from leveret.ports.declared import undeclared

DECLARED = ("exchange", "headers", "due_from_ms")
KNOWN = "there are due_from_ms, exchange, headers"


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ([], None),
        (["exchange", "headers"], None),
        (["excange"], f"unknown field 'excange'; did you mean 'exchange'?; {KNOWN}"),
        (["header", "exchange"], f"unknown field 'header'; did you mean 'headers'?; {KNOWN}"),
        (["due_from"], f"unknown field 'due_from'; did you mean 'due_from_ms'?; {KNOWN}"),
        (["zzz", "yyy"], f"unknown field 'yyy'; {KNOWN}"),
        (["\udcff"], f"unknown field '\\udcff'; {KNOWN}"),
    ],
)
def test_a_field_that_nobody_declares_is_named(given, said):
    assert undeclared(given, DECLARED) == said


def test_nothing_may_be_declared():
    assert undeclared(["x"], ()) == "unknown field 'x'; there are none"


def test_a_very_long_name_is_cut():
    said = undeclared(["x" * 1_000_000], DECLARED)
    assert len(said) < 200
