"""requirements/ fits pyproject.toml: `make upgrade` was run after a bound had changed."""

from __future__ import annotations

import ast
import re
import sys
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement

ROOT = Path(__file__).resolve().parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
EXTRAS = PROJECT["project"]["optional-dependencies"]
WANTED = {
    "run": PROJECT["project"]["dependencies"] + EXTRAS["cluster"],
    "build": PROJECT["build-system"]["requires"],
    "test": EXTRAS["dev"],
    "interop": EXTRAS["interop"],
    "spark": EXTRAS["spark"],
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
    run, build, test, interop, spark = map(locked, WANTED)
    assert (run | build).items() <= test.items()
    assert test.items() <= interop.items()
    assert test.items() <= spark.items()


# What a distribution is imported as, where that is another name.
MODULES = {"google-re2": "re2", "pyjwt": "jwt"}
OWN = {"leveret", "pydantic_core"}  # the other half of pydantic, which pins it


def test_every_library_that_is_imported_is_named():
    known = modules("run") | OWN | sys.stdlib_module_names
    for path in (ROOT / "leveret").rglob("*.py"):
        more = modules("spark") if path.is_relative_to(ROOT / "leveret" / "spark") else set()
        for module in imported(ast.parse(path.read_text())):
            assert module in known | more, (path, module)


def modules(name: str) -> set[str]:
    """Return the names under which the libraries of an environment are imported."""
    named = {requirement.name.lower() for requirement in map(Requirement, WANTED[name])}
    return {MODULES.get(each, each.replace("-", "_")) for each in named}


def imported(tree: ast.Module) -> set[str]:
    """The top-level names of the modules that a file imports."""
    found: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found.update(alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and not node.level:
            found.add(str(node.module).partition(".")[0])
    return found
