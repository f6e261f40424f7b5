"""The README's examples work: programs and commands in their order, on one fresh node.

And of all documents: links lead somewhere, commands in sentences exist.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from tests.process import node_addresses
from tests.support.commands import check_mention
from tests.support.http import HttpClient
from tests.support.waiting import LIMIT_SECONDS

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()
BLOCK = re.compile(r"^```(python|console)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
PASSWORD = "a new password"
DOCUMENTS = sorted(
    path
    for path in (*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), ROOT / "deploy" / "README.md")
    if path.name != "compatibility.md"  # generated; tests/test_compatibility.py
)
# What the README's programs print, in their order.
PRINTED = ["hello, log\n", "None\nb'two seconds later'\n", "42 EUR 1\n"]


def run(data: Path, *arguments: str, stdin: str = "") -> str:
    done = subprocess.run(
        [sys.executable, *arguments],
        input=stdin,
        env={**os.environ, "LEVERET_DATA_DIR": str(data)},
        capture_output=True,
        text=True,
        check=False,
        timeout=LIMIT_SECONDS,
    )
    assert (done.returncode, done.stderr) == (0, ""), (arguments, done.stdout, done.stderr)
    return done.stdout


def commands_of(text: str) -> list[list[str]]:
    lines = [line.removeprefix("$ ") for line in text.splitlines() if line.startswith("$ ")]
    return [shlex.split(line) for line in lines]


@pytest.mark.usefixtures("processes")
@pytest.mark.smoke
def test_first_hour(tmp_path):
    """From nothing to a delayed message, a retry, an administrator of one's own and the UI."""
    printed = []
    with node_addresses(tmp_path, http=True) as addresses:
        port, http = (addresses[name].rpartition(":")[2] for name in ("amqp", "http"))
        for language, text in BLOCK.findall(README):
            if language == "python":
                printed.append(run(tmp_path, "-c", text.replace("5672", port)))
                continue
            for command, *words in commands_of(text):
                assert command == ".venv/bin/leveret"
                run(tmp_path, "-m", "leveret", *words, stdin=PASSWORD + "\n")
        assert printed == PRINTED
        with HttpClient(f"localhost:{http}", user=None) as browser:
            overview = browser.get("/api/overview", auth=("admin", PASSWORD))
            assert overview.status_code == 200
            assert browser.get("/api/overview", auth=("guest", "guest")).status_code == 401
            assert browser.get("/").status_code in {200, 303}


def test_client_is_installed_where_the_programs_are_run():
    """Debian's own pip installs nothing outside of a virtual environment (PEP 668)."""
    assert re.findall(r"`(\S*pip install pika)`", README) == [".venv/bin/pip install pika"]
    assert "`.venv/bin/python FILE`" in README


def anchors_of(text: str) -> set[str]:
    """Of each heading: lower case, hyphens for spaces, nothing else but letters and digits."""
    headings = re.findall(r"^#+ (.*)$", re.sub(r"^```.*?^```$", "", text, flags=re.S | re.M), re.M)
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_links_lead_somewhere(document):
    for link in re.findall(r"\]\(((?!https?:)[^)\s]+)\)", document.read_text()):
        name, _, anchor = link.partition("#")
        target = (document.parent / name).resolve() if name else document
        assert target.exists(), link
        if anchor:
            assert anchor in anchors_of(target.read_text()), link


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_commands_in_sentences_exist(document):
    for mention in re.findall(r"`(leveret [a-z-][^`]*)`", document.read_text()):
        check_mention(" ".join(mention.split()))


def test_anchors_are_those_of_headings():
    assert anchors_of("# One\n\n## Retries: `x-retry`, now\n\n```sh\n# no heading\n```\n") == {
        "one",
        "retries-x-retry-now",
    }


def test_figures_are_those_of_the_last_measurement():
    """The README's table says nothing that bench/RESULTS.md does not."""
    results = (ROOT / "bench" / "RESULTS.md").read_text()
    row = r"^\| .*? \| messages(?: published)?/s \| ([\d,]+) \| ([\d,]+) \| "
    measured = [numbers(row) for row in re.findall(row, results, re.MULTILINE)]
    row = r"^\| [^|]+ \| ([\d,]+) \| ([\d,]+) \| ([\d.]+) times \|"
    shown = [numbers(row) for row in re.findall(row, README, re.MULTILINE)]
    assert shown
    for rabbitmq, leveret, ratio in shown:
        assert any(close(rabbitmq, a) and close(leveret, b) for a, b in measured), leveret
        assert close(leveret / rabbitmq, ratio), ratio


def numbers(row: tuple[str, ...]) -> list[float]:
    return [float(cell.replace(",", "")) for cell in row]


def close(one: float, other: float) -> bool:
    """Rounded to two or three digits."""
    return abs(one - other) <= 0.03 * other
