"""requirements/ fits pyproject.toml: `make upgrade` was run after a bound had changed."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement

ROOT = Path(__file__).resolve().parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
EXTRAS = PROJECT["project"]["optional-dependencies"]
WANTED = {
    "run": PROJECT["project"]["dependencies"],
    "build": PROJECT["build-system"]["requires"],
    "test": EXTRAS["dev"],
    "interop": EXTRAS["interop"],
}


def locked(name: str) -> dict[str, tuple[str, bool]]:
    """Release and whether it has a hash, by the name of the package."""
    text = (ROOT / "requirements" / f"{name}.txt").read_text()
    found = re.findall(
        r"^([\w.-]+)==([^\s;]+)[^\n]*\n((?:    --hash\S+[^\n]*\n?)*)", text, re.MULTILINE
    )
    return {package: (version, "--hash=sha256:" in hashes) for package, version, hashes in found}


@pytest.mark.parametrize("name", WANTED)
def test_named_releases_are_within_the_bounds(name):
    releases = locked(name)
    for requirement in map(Requirement, WANTED[name]):
        version, _ = releases[requirement.name.lower()]
        assert version in requirement.specifier, requirement


@pytest.mark.parametrize("name", WANTED)
def test_every_release_has_a_hash(name):
    assert all(has_hash for _, has_hash in locked(name).values())


def test_each_environment_contains_the_smaller_ones():
    run, build, test, interop = map(locked, ("run", "build", "test", "interop"))
    assert (run | build).items() <= test.items()
    assert test.items() <= interop.items()
