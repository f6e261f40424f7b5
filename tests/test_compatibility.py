"""docs/compatibility.md says for every demand which test shows it, and says the truth."""

from __future__ import annotations

import ast

from tests.compatibility import DOCUMENT, Compatibility, marked_tests, marks


def test_every_demand_has_a_test_or_a_reason():
    assert Compatibility.load().problems(marked_tests()) == []


def test_the_document_is_what_the_tests_say():
    document = Compatibility.load().document(marked_tests())
    assert DOCUMENT.read_text("utf-8") == document, "run `make docs`"


def test_marks_are_found_wherever_a_decorator_carries_them():
    source = """
@pytest.mark.covers("B-001", "B-002")
def one(): ...

class Some:
    @pytest.mark.parametrize("x", [pytest.param(1, marks=pytest.mark.covers("B-003"))])
    async def two(self): ...
"""
    found = sorted(marks(ast.parse(source)))
    assert found == [("one", "B-001"), ("one", "B-002"), ("two", "B-003")]


def test_what_is_wrong_is_said():
    compatibility = Compatibility({"Some": {"B-1": "a", "B-2": "b", "B-3": "c"}}, {}, {"B-3": "x"})
    shown = {"B-1": ["t::a"], "B-3": ["t::c"], "B-9": ["t::d"]}
    assert compatibility.problems(shown) == [
        "B-9: no such id in compatibility.toml",
        "B-2: neither a test nor a reason why there is none",
        "B-3: stands under [absent] and has a test: t::c",
    ]
