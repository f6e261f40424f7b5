"""Test suites of other people's clients: where their sources come from, and how they are run.

The clients' releases carry their tests in the source archive only, so that is fetched once by the
package index's own client, in the version that is installed, into a cache outside the repository.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tarfile
import xml.etree.ElementTree as ET
from importlib import metadata
from pathlib import Path

SUITE_SECONDS_MAX = 300
SAID_CHARACTERS_MAX = 1500  # of a failure: enough for the end of its traceback

Outcomes = dict[str, str | None]
"""Test → what it said when it failed, "skipped", or None when it passed."""


class SourcesMissingError(RuntimeError):
    """The archive is neither cached nor to be had; the text says what the program said."""


def cache_directory() -> Path:
    """Return the directory that keeps fetched clients between runs; INTEROP_CACHE moves it."""
    default = Path.home() / ".cache" / "leveret-interop"
    return Path(os.environ.get("INTEROP_CACHE", default))


def unpack_distribution(name: str, directory: Path) -> Path:
    """Unpack the sources of an installed distribution; returns the root of the tree."""
    version = metadata.version(name)
    archive = cache_directory() / f"{name}-{version}.tar.gz"
    if not archive.exists():
        _download(f"{name}=={version}", archive)
    with tarfile.open(archive) as packed:
        packed.extractall(directory, filter="data")
    return directory / f"{name}-{version}"


def _download(requirement: str, archive: Path) -> None:
    archive.parent.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, "-m", "pip", "download", "-q", "--disable-pip-version-check"]
    # The archive is wanted, not what it would take to build it.
    command += ["--no-deps", "--no-build-isolation", "--no-binary", ":all:", requirement]
    done = subprocess.run(command, cwd=archive.parent, capture_output=True, text=True, check=False)
    if not archive.exists():
        raise SourcesMissingError(done.stdout + done.stderr)


def run(tree: Path, *arguments: str, environment: dict[str, str] | None = None) -> Outcomes:
    """Run pytest in `tree`, in a process of its own that sees nothing of this repository."""
    report = tree / "report.xml"
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-c", os.devnull]
    command += ["--rootdir", str(tree), "--junitxml", str(report), *arguments]
    inherited = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    subprocess.run(
        command,
        cwd=tree,
        env={**inherited, **(environment or {})},
        timeout=SUITE_SECONDS_MAX,
        stdout=subprocess.DEVNULL,
        check=False,
    )
    return {
        f"{case.get('classname', '').rpartition('.')[2]}.{case.get('name')}": _said(case)
        for case in ET.parse(report).iter("testcase")
    }


def check(outcomes: Outcomes, must_fail: dict[str, str], passed_min: int) -> None:
    """Assert that exactly those tests fail that must, and that so many pass at least."""
    failed = {name: said for name, said in outcomes.items() if said not in (None, "skipped")}
    expected = must_fail.keys() & outcomes.keys()
    unexpected = {name: said for name, said in failed.items() if name not in expected}
    assert not unexpected, "\n\n".join(f"{name}\n{said}" for name, said in unexpected.items())
    assert expected <= failed.keys(), "a test that must fail passes: take it off the list"
    assert sum(said is None for said in outcomes.values()) >= passed_min


def _said(case: ET.Element) -> str | None:
    if case.find("skipped") is not None:
        return "skipped"
    for kind in ("failure", "error"):
        found = case.find(kind)
        if found is not None:
            return (found.text or "")[-SAID_CHARACTERS_MAX:]
    return None
