"""The faults fit the code that is there, and are taken out again."""

from pathlib import Path

import pytest

from tests.mutations.__main__ import REPOSITORY, Outcome, Trial, chosen, has_failed
from tests.mutations.faults import FAULTS
from tests.mutations.tree import FAILURE, TreeCopy

FAULT = FAULTS[0]


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_a_fault_fits_the_code(fault):
    text = (REPOSITORY / fault.file).read_text("utf-8")
    assert fault.planted_in(text) != text
    assert (REPOSITORY / fault.near).is_dir()


def test_names_are_unique():
    assert len({fault.name for fault in FAULTS}) == len(FAULTS) == 21
    assert chosen([]) == list(FAULTS)


@pytest.mark.parametrize("text", ["nothing of it", 2 * FAULT.old])
def test_a_fault_that_does_not_fit_is_refused(text):
    with pytest.raises(ValueError, match="must occur once"):
        FAULT.planted_in(text)


def test_a_fault_is_taken_out_again(tmp_path):
    source = tmp_path / FAULT.file
    source.parent.mkdir(parents=True)
    source.write_text(FAULT.old)
    with TreeCopy(Path(), tmp_path).planted(FAULT):
        assert source.read_text() == FAULT.new
    assert source.read_text() == FAULT.old


def test_the_first_failure_is_found_in_what_pytest_prints():
    printed = """\
SKIPPED [1] tests/a.py:1: another machine
FAILED tests/a.py::test_a[one two] - assert 1 == 2
FAILED tests/b.py::test_b
"""
    assert FAILURE.findall(printed) == ["tests/a.py::test_a[one two]", "tests/b.py::test_b"]


@pytest.mark.parametrize(
    ("outcomes", "failed"),
    [
        ([Outcome.RED] * 18 + [Outcome.SURVIVED] * 2, False),
        ([Outcome.RED] * 17 + [Outcome.SURVIVED] * 3, True),
        ([Outcome.RED] * 19 + [Outcome.ERROR], True),
        ([Outcome.RED] * 19 + [Outcome.FLAKY], True),
    ],
)
def test_two_faults_may_survive(outcomes, failed):
    assert has_failed([Trial(FAULT, outcome, 1.0) for outcome in outcomes]) is failed
