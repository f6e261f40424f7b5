"""What the README shows, works."""

import re
import subprocess
import sys
from pathlib import Path

from tests.process import running_node

README = (Path(__file__).parent.parent / "README.md").read_text()


def test_example_runs_against_a_fresh_node(tmp_path):
    example = re.search(r"```python\n(.*?)```", README, re.DOTALL).group(1)
    assert example.count("5672") == 1
    with running_node(tmp_path) as port:
        result = subprocess.run(
            [sys.executable, "-c", example.replace("5672", str(port))],
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
        )
    assert (result.stdout, result.stderr) == ("hello, log\n", "")


def test_named_files_exist():
    for name in re.findall(r"\]\(([^)h][^)]*)\)", README):
        assert (Path(__file__).parent.parent / name).exists(), name
