"""What the user guide shows, works: each page against a fresh node.

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
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.process import node_addresses

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


def pattern_of(expected: str) -> str:
    return ".*".join(re.escape(part) for part in expected.strip().split("…"))


@pytest.mark.timeout(PAGE_SECONDS_MAX)
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_page(page: Path, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    working_directory = tmp_path_factory.mktemp("working")
    text = page.read_text()
    assert text.startswith("# ")
    with node_addresses(tmp_path) as addresses:
        ports = {name: addresses[name].rpartition(":")[2] for name in addresses if name != "data"}
        for step in steps_of(text):
            arguments = [
                argument.replace("15672", ports["http"])
                .replace("15692", ports["prometheus"])
                .replace("5672", ports["amqp"])
                for argument in step.arguments
            ]
            done = subprocess.run(
                [sys.executable, *arguments],
                cwd=working_directory,
                env={**os.environ, "LEVERET_DATA_DIR": str(tmp_path), "COLUMNS": "100"},
                capture_output=True,
                text=True,
                check=False,
                timeout=RUN_SECONDS_MAX,
            )
            assert done.returncode == 0, (arguments, done.stdout, done.stderr)
            if step.expected is not None:
                pattern = pattern_of(step.expected)
                assert re.fullmatch(pattern, done.stdout.strip(), re.DOTALL), done.stdout


def test_every_page_is_named_in_the_index() -> None:
    index = (GUIDE / "README.md").read_text()
    for page in PAGES:
        assert page.stem == "README" or f"({page.name})" in index, page.name
