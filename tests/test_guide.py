"""What the user guide shows, works: each page on a fresh node, and all of them in turn on one.

The blocks of a page run in order. A ```python block is a whole program that connects to port 5672,
a ```text block right behind it is what it prints. A ```console block holds commands behind `$ `,
with what they print below them. `…` in an output stands for anything.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import pytest

from tests.process import node_addresses

if TYPE_CHECKING:
    from collections.abc import Iterator

GUIDE = Path(__file__).parent.parent / "docs" / "guide"
PAGES = sorted(GUIDE.glob("*.md"))
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
RUN_SECONDS_MAX = 60
# A page may have two dozen programs, and each takes a second to begin on a busy machine.
PAGE_SECONDS_MAX = 480


class Step(NamedTuple):
    """One program of a page, and what it shall print (None: whatever it likes)."""

    arguments: list[str]
    expected: str | None


def steps_of(page: str) -> list[Step]:
    steps: list[Step] = []
    for language, text in BLOCK.findall(page):
        if language == "python":
            steps.append(Step(["-c", text], None))
        elif language == "text" and steps:
            steps[-1] = steps[-1]._replace(expected=text)
        elif language == "console":
            for part in re.split(r"^\$ ", text, flags=re.MULTILINE)[1:]:
                command, _, output = part.partition("\n")
                words = shlex.split(command, comments=True)
                assert words[0] == "leveret", "the guide shows our own command only"
                steps.append(Step(["-m", *words], output))
    return steps


def in_the_order_of_the_index() -> list[Path]:
    index = GUIDE / "README.md"
    named = re.findall(r"^- \[.*?\]\((\S+\.md)\)", index.read_text(), re.MULTILINE)
    return [index, *(GUIDE / name for name in named)]


def pattern_of(expected: str) -> str:
    return ".*".join(re.escape(part) for part in expected.strip().split("…"))


class Reader:
    """Somebody with a node, who follows pages and compares what is printed with what they show."""

    def __init__(self, addresses: dict[str, str], data: Path, working_directory: Path) -> None:
        self._ports = {name: each.rpartition(":")[2] for name, each in addresses.items()}
        self._data = data
        self._working_directory = working_directory

    def follow(self, page: Path) -> None:
        for step in steps_of(page.read_text()):
            done = self._run(step.arguments)
            assert done.returncode == 0, (step.arguments, done.stdout, done.stderr)
            if step.expected is not None:
                pattern = pattern_of(step.expected)
                assert re.fullmatch(pattern, done.stdout.strip(), re.DOTALL), done.stdout

    def _run(self, arguments: list[str]) -> subprocess.CompletedProcess[str]:
        here = [self._with_ports(argument) for argument in arguments]
        return subprocess.run(
            [sys.executable, *here],
            cwd=self._working_directory,
            env={**os.environ, "LEVERET_DATA_DIR": str(self._data), "COLUMNS": "100"},
            capture_output=True,
            text=True,
            check=False,
            timeout=RUN_SECONDS_MAX,
        )

    def _with_ports(self, text: str) -> str:
        for port, name in (("15672", "http"), ("15692", "prometheus"), ("5672", "amqp")):
            text = text.replace(port, self._ports[name])
        return text


@contextmanager
def reader_with_a_node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Reader]:
    data = tmp_path_factory.mktemp("data")
    with node_addresses(data) as addresses:
        yield Reader(addresses, data, tmp_path_factory.mktemp("working"))


@pytest.fixture(scope="module")
def patient_reader(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Reader]:
    """Follows one page after the other, on the same node."""
    with reader_with_a_node(tmp_path_factory) as reader:
        yield reader


@pytest.mark.timeout(PAGE_SECONDS_MAX)
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_page_by_itself(page: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    assert page.read_text().startswith("# ")
    with reader_with_a_node(tmp_path_factory) as reader:
        reader.follow(page)


@pytest.mark.timeout(PAGE_SECONDS_MAX)
@pytest.mark.parametrize("page", in_the_order_of_the_index(), ids=lambda page: page.stem)
def test_page_after_those_before_it(page: Path, patient_reader: Reader) -> None:
    patient_reader.follow(page)


def test_every_page_is_named_in_the_index() -> None:
    index = (GUIDE / "README.md").read_text()
    for page in PAGES:
        assert page.stem == "README" or f"({page.name})" in index, page.name
