"""The records of decisions: numbers without holes, one form, and an index that lists them all."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
DIRECTORY = ROOT / "docs" / "decisions"
RECORDS = sorted(DIRECTORY.glob("[0-9]*.md"))
NUMBERS = {record.name[:4] for record in RECORDS}
REFERENCES = re.compile(
    r"[Dd]ecisions?[\s#]+(\d{4}(?:(?:,\s+(?:and\s+)?|\s+and\s+|,\s+#\s*)\d{4})*)"
)


def test_numbers_have_no_holes():
    assert [record.name[:4] for record in RECORDS] == [
        f"{number:04d}" for number in range(1, len(RECORDS) + 1)
    ]


@pytest.mark.parametrize("record", RECORDS, ids=lambda record: record.name[:4])
def test_a_decision_says_what_was_decided_and_when(record):
    text = record.read_text()
    heading = re.match(
        r"# (\d{4})\. (.+)\n\n\d{4}-\d\d-\d\d, (accepted|replaced by \d{4})\.\n\n", text
    )
    assert heading is not None, "begins with '# NNNN. Title', then its date and status"
    number, title, status = heading.groups()
    assert record.name.startswith(f"{number}-")
    row = rf"^\| \[{number}\]\({re.escape(record.name)}\) \| (.+) \| [\d-]+ \| (.+) \|$"
    listed = re.search(row, (DIRECTORY / "README.md").read_text(), re.MULTILINE)
    assert listed is not None, "the index lists it"
    assert listed.groups() == (title, status)


def test_decisions_that_are_referred_to_exist():
    texts = [
        path
        for folder in ("docs", "leveret", "tests")
        for path in (ROOT / folder).rglob("*")
        if path.suffix in {".md", ".py", ".pyx", ".pxd", ".pyi"}
    ]
    missing = []
    for path in [*texts, ROOT / "README.md", ROOT / "CHANGELOG.md"]:
        for found in REFERENCES.finditer(path.read_text()):
            unknown = set(re.findall(r"\d{4}", found[1])) - NUMBERS
            missing += [(str(path), number) for number in sorted(unknown)]
    assert not missing
