"""The user guide's examples work: each page with a fresh node, as it is read by itself.

The blocks of a page run in order. A ```python block is a whole program that connects to port 5672,
a ```text block right behind it is what it prints. A ```console block holds commands behind `$ `,
with what they print below them. In an output `…` stands for anything, a time for any time (with
the `-2` of the second backup in one second), the gap between two columns for one of any width.

What cannot be run beside the reader's node is checked as far as it can be: the ```toml blocks of a
page together are a file of settings, each line of a ```sh block is a command that the parser takes.
Programs for Celery (```python celery) are run by interop_tests/test_guide_celery.py, those for
Spark (```python spark) by spark_tests/test_docs.py.
"""

from __future__ import annotations

import ast
import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import pytest

from leveret.cli.app import COMMANDS
from leveret.config import load
from tests.process import node_addresses
from tests.support.commands import check_command
from tests.support.waiting import LIMIT_SECONDS

if TYPE_CHECKING:
    from collections.abc import Iterator

GUIDE = Path(__file__).parent.parent / "docs" / "guide"
PAGES = sorted(GUIDE.glob("*.md"))
CLUSTER_PAGE = "cluster"  # is followed by tests/system/test_cluster_guide.py
SMOKE_PAGE = "command-line"  # `make test` follows this one, `make verify` all of them
BLOCK = re.compile(r"^```(.*)\n((?s:.*?))^```$", re.MULTILINE)
INDENTED_COMMAND = re.compile(r"^    (?:\$ )?(leveret .*)$", re.MULTILINE)
CELERY = "python celery"
LANGUAGES = {"python", CELERY, "text", "console", "sh", "toml", "json", "crontab"}
ANYTHING = "…"
TIME = r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d{3})?Z|\d{8}T\d{6}Z"
NAME_OF_BACKUP = re.compile(r"\d{8}T\d{6}Z")
GAP = re.compile(r"(?:\\ ){2,}")
FOLLOWED = [
    pytest.param(page, marks=pytest.mark.smoke) if page.stem == SMOKE_PAGE else page
    for page in PAGES
    if page.stem != CLUSTER_PAGE
]
# A page may have two dozen programs, and each takes a second to begin on a busy machine.
PAGE_SECONDS_MAX = 8 * LIMIT_SECONDS


class Step(NamedTuple):
    """One program of a page, and what it shall print (None: whatever it likes)."""

    arguments: list[str]
    expected: str | None


def blocks_of(page: str, language: str) -> list[str]:
    return [text for found, text in BLOCK.findall(page) if found == language]


def steps_of(page: str) -> list[Step]:
    steps: list[Step] = []
    before = ""
    for language, text in BLOCK.findall(page):
        if language == "python":
            steps.append(Step(["-c", text], None))
        elif language == "text" and before == "python":
            steps[-1] = steps[-1]._replace(expected=text)
        elif language == "console":
            for part in re.split(r"^\$ ", text, flags=re.MULTILINE)[1:]:
                command, _, output = part.partition("\n")
                words = shlex.split(command, comments=True)
                assert words[0] == "leveret", "the guide shows our own command only"
                steps.append(Step(["-m", *words], output))
        before = language
    return steps


def pattern_of(expected: str) -> str:
    return "".join(map(pattern_of_part, re.split(f"({ANYTHING}|{TIME})", expected.strip())))


def pattern_of_part(part: str) -> str:
    if part == ANYTHING:
        return ".*"
    if re.fullmatch(TIME, part):
        later = r"(?:-\d+)?" if NAME_OF_BACKUP.fullmatch(part) else ""
        return re.sub(r"\d", r"\\d", re.escape(part)) + later
    return GAP.sub(" {2,}", re.escape(part))


class Reader:
    """Reader of the guide with a node, who compares what is printed with what pages show."""

    def __init__(self, addresses: dict[str, str], data: Path, working_directory: Path) -> None:
        self._ports = {name: each.rpartition(":")[2] for name, each in addresses.items()}
        self._data = data
        self._working_directory = working_directory

    def follow(self, page: Path) -> None:
        for step in steps_of(page.read_text()):
            done = self._run(step.arguments)
            assert done.returncode == 0, (step.arguments, done.stdout, done.stderr)
            if step.expected is not None:
                pattern = pattern_of(self._with_ports(step.expected))
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
            timeout=LIMIT_SECONDS,
        )

    def _with_ports(self, text: str) -> str:
        for port, name in (("15672", "http"), ("15692", "prometheus"), ("5672", "amqp")):
            text = text.replace(port, self._ports[name])
        return text


@pytest.fixture
def reader(tmp_path_factory: pytest.TempPathFactory, processes: None) -> Iterator[Reader]:
    data = tmp_path_factory.mktemp("data")
    with node_addresses(data, http=True, metrics=True) as addresses:
        yield Reader(addresses, data, tmp_path_factory.mktemp("working"))


@pytest.mark.guide
@pytest.mark.timeout(PAGE_SECONDS_MAX)
@pytest.mark.parametrize("page", FOLLOWED, ids=lambda page: page.stem)
def test_page(page: Path, reader: Reader) -> None:
    assert page.read_text().startswith("# ")
    reader.follow(page)


def test_backups_may_be_taken_in_one_second() -> None:
    pattern = pattern_of("a\nb/20260105T093000Z  2026-01-05T09:30:00Z  …")
    assert re.fullmatch(pattern, "a\nb/20261124T014815Z-2  2026-11-24T01:48:15Z  0.1.0")
    assert re.fullmatch(pattern, "a\nb/20261124T014815Z    2026-11-24T01:48:15Z  0.1.0")
    assert not re.fullmatch(pattern, "a\nb/20261124T014815Z 2026-11-24T01:48:15Z  0.1.0")
    assert not re.fullmatch(pattern, "a\nb/20261124T014815Z  2026-11-24T01:48:15Z-2  0.1.0")


def test_every_page_is_named_in_the_index() -> None:
    index = (GUIDE / "README.md").read_text()
    for page in PAGES:
        assert page.stem == "README" or f"({page.name})" in index, page.name


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_every_block_is_of_a_kind_that_is_checked(page: Path) -> None:
    text = page.read_text()
    assert {language for language, _ in BLOCK.findall(text)} <= LANGUAGES
    assert len(re.findall("^```", text, re.MULTILINE)) == 2 * len(BLOCK.findall(text))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_commands_that_are_not_run_are_taken_by_the_parser(page: Path) -> None:
    text = page.read_text()
    lines = "".join(blocks_of(text, "sh")).splitlines()
    lines += [
        line.split(maxsplit=5)[5] for line in "".join(blocks_of(text, "crontab")).splitlines()
    ]
    lines += INDENTED_COMMAND.findall(BLOCK.sub("", text))
    for line in lines:
        check_command(line)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_settings_of_a_page_can_be_loaded_together(page: Path, tmp_path: Path) -> None:
    file = tmp_path / "leveret.toml"
    file.write_text("\n".join(blocks_of(page.read_text(), "toml")))
    load(file, environ={})


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_objects_and_programs_that_are_not_run_can_be_read(page: Path) -> None:
    for text in blocks_of(page.read_text(), "json"):
        json.loads(text)
    for text in blocks_of(page.read_text(), CELERY):
        compile(text, str(page), "exec")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_programs_say_how_long_they_wait_for_http(page: Path) -> None:
    for text in blocks_of(page.read_text(), "python"):
        calls = [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Call)]
        for call in calls:
            if ast.unparse(call.func) in {"httpx.Client", "urlopen"}:
                assert "timeout" in {keyword.arg for keyword in call.keywords}, ast.unparse(call)


def test_every_command_is_named_on_the_page_of_the_command_line() -> None:
    page = (GUIDE / "command-line.md").read_text()
    for name in COMMANDS:
        assert f"`{name}`" in page, name


def test_times_stand_for_times_and_dots_for_anything() -> None:
    pattern = pattern_of("a/20260105T093000Z 2026-01-05T09:30:00.000Z … 1.5\n")
    assert re.fullmatch(pattern, "a/20311231T235959Z 2031-12-31T23:59:59.999Z x 1.5")
    assert not re.fullmatch(pattern, "a/20311231T235959Z yesterday x 1.5")
    assert not re.fullmatch(pattern, "a/20311231T235959Z 2031-12-31T23:59:59Z x 1.5")
    assert not re.fullmatch(pattern, "a/20311231T235959Z 2031-12-31T23:59:59.999Z x 1x5")
