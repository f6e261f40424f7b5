"""What the README shows, works: programs and commands in their order, on one fresh node."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import httpx

from tests.process import node_addresses

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()
BLOCK = re.compile(r"^```(python|console)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
PASSWORD = "a new password"
RUN_SECONDS_MAX = 60
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
        timeout=RUN_SECONDS_MAX,
    )
    assert (done.returncode, done.stderr) == (0, ""), (arguments, done.stdout, done.stderr)
    return done.stdout


def commands_of(text: str) -> list[list[str]]:
    lines = [line.removeprefix("$ ") for line in text.splitlines() if line.startswith("$ ")]
    return [shlex.split(line) for line in lines]


def test_first_hour(tmp_path):
    """From nothing to a delayed message, a retry, an administrator of one's own and the UI."""
    printed = []
    with node_addresses(tmp_path) as addresses:
        port, http = (addresses[name].rpartition(":")[2] for name in ("amqp", "http"))
        for language, text in BLOCK.findall(README):
            if language == "python":
                printed.append(run(tmp_path, "-c", text.replace("5672", port)))
                continue
            for command, *words in commands_of(text):
                assert command == ".venv/bin/leveret"
                run(tmp_path, "-m", "leveret", *words, stdin=PASSWORD + "\n")
        assert printed == PRINTED
        pages = httpx.Client(base_url=f"http://localhost:{http}")
        with pages as browser:
            overview = browser.get("/api/overview", auth=("admin", PASSWORD))
            assert overview.status_code == 200
            assert browser.get("/api/overview", auth=("guest", "guest")).status_code == 401
            assert browser.get("/").status_code in {200, 303}


def test_named_files_exist():
    for name in ("README.md", "SECURITY.md", "CONTRIBUTING.md", "docs/differences.md"):
        text = (ROOT / name).read_text()
        for link in re.findall(r"\]\(([^)h#][^)]*)\)", text):
            assert ((ROOT / name).parent / link).exists(), (name, link)


def test_figures_are_those_of_the_last_measurement():
    """The README's table says nothing that bench/RESULTS.md does not."""
    results = (ROOT / "bench" / "RESULTS.md").read_text()
    row = r"^\| .*? \| messages/s \| ([\d,]+) \| ([\d,]+) \| "
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
