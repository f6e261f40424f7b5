"""A second checkout takes compiled modules from a cache, if they are made of the same sources."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

SETUP = Path(__file__).parent.parent / "setup.py"
SOURCES = {
    "__init__.py": "",
    "shapes.pxd": "cdef inline int sides(): return 4",
    "square.pyx": "from leveret.shapes cimport sides\ndef count(): return sides()",
    "shapes.pyx": "def name(): return 'shapes'",
}

pytestmark = pytest.mark.usefixtures("processes")


class Checkout:
    """A tree with two modules to compile."""

    def __init__(self, directory, cache):
        self.directory, self.cache = directory, cache
        (directory / "leveret").mkdir(parents=True)
        shutil.copy(SETUP, directory)
        for name, text in SOURCES.items():
            self.write(name, text)

    def write(self, name, text):
        (self.directory / "leveret" / name).write_text(text)

    def build(self, **environment):
        """Return the names of the modules that were compiled."""
        environment = {**os.environ, "BUILD_CACHE": str(self.cache or ""), **environment}
        done = subprocess.run(
            [sys.executable, "setup.py", "-q", "build_ext", "--inplace"],
            cwd=self.directory,
            env=environment,
            capture_output=True,
            text=True,
            check=True,
        )
        lines = [line.split() for line in done.stdout.splitlines()]
        return sorted(line[-1] for line in lines if line and line[0] == "compiled")

    def count(self):
        code = "from leveret import shapes, square; print(shapes.name(), square.count())"
        return subprocess.check_output(
            [sys.executable, "-c", code], cwd=self.directory, text=True
        ).strip()


def test_modules_come_from_the_cache_where_they_are_made_of_the_same(tmp_path):
    cache = tmp_path / "cache"
    first = Checkout(tmp_path / "first", cache)
    everything = ["leveret.cython_shared", "leveret.shapes", "leveret.square"]
    assert first.build() == everything
    assert first.build() == []  # they are there
    second = Checkout(tmp_path / "second", cache)
    assert second.build() == []
    assert second.build() == []
    assert second.count() == "shapes 4"
    second.write("shapes.pxd", "cdef inline int sides(): return 5")
    assert second.build() == ["leveret.shapes", "leveret.square"]
    assert second.count() == "shapes 5"
    for stored in cache.iterdir():  # as a crash may leave them
        stored.write_bytes(stored.read_bytes()[:1000])
    third = Checkout(tmp_path / "third", cache)
    third.write("shapes.pyx", "def name(): return 'forms'")
    assert third.build() == everything
    assert third.count() == "forms 4"
    assert third.build(CFLAGS="-O1") == everything
    assert third.build() == []


def test_a_cache_that_cannot_be_used_is_not_needed(tmp_path):
    cache = tmp_path / "file"
    cache.write_text("no directory")
    checkout = Checkout(tmp_path / "first", cache)
    assert len(checkout.build()) == 3
    assert checkout.count() == "shapes 4"
    assert cache.read_text() == "no directory"
    without = Checkout(tmp_path / "without", None)
    assert len(without.build()) == 3
