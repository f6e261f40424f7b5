"""pika's own acceptance tests: found in Debian's source package, prepared for one broker's port.

The package index carries pika without its tests, so the upstream archive comes from Debian (apt
checks its hash). It is fetched once, into a cache directory outside the repository.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tarfile
from typing import TYPE_CHECKING

from interop_tests.foreign_suite import SourcesMissingError, cache_directory

if TYPE_CHECKING:
    from pathlib import Path

PACKAGE = "python-pika"
VERSION = "1.3.2"  # what Debian 13 carries; the archive holds this version of pika and its tests
SUITE = "trixie"
KEYRING = "/usr/share/keyrings/debian-archive-keyring.gpg"
DEFAULT_PORT = "5672"
# The three places where the tests name the broker's port.
FILES_WITH_PORT = (
    "tests/acceptance/blocking_adapter_test.py",
    "tests/base/async_test_base.py",
    "tests/misc/forward_server.py",
)


def archive() -> Path:
    """The upstream archive in the cache, fetched when it is not there yet."""
    path = cache_directory() / f"{PACKAGE}_{VERSION}.orig.tar.gz"
    if not path.exists():
        _fetch(path)
    return path


def _fetch(path: Path) -> None:
    apt = path.parent / "apt"
    (apt / "lists" / "partial").mkdir(parents=True, exist_ok=True)
    environment = {**os.environ, "APT_CONFIG": str(_apt_configuration(apt))}
    said = ""
    for command in (
        ["apt-get", "update"],
        ["apt-get", "source", "--download-only", f"{PACKAGE}={VERSION}-1"],
    ):
        done = subprocess.run(
            command, cwd=path.parent, env=environment, capture_output=True, text=True, check=False
        )
        said += done.stdout + done.stderr
    shutil.rmtree(apt)
    if not path.exists():  # apt keeps what it could verify, even when the packaging itself is gone
        raise SourcesMissingError(said)


def _apt_configuration(apt: Path) -> Path:
    """A configuration of our own, so that the machine's package sources stay as they are."""
    source = f"deb-src [signed-by={KEYRING}] {_mirror()} {SUITE} main\n"
    (apt / "sources.list").write_text(source)
    configuration = apt / "apt.conf"
    configuration.write_text(
        f'Dir::Etc::sourcelist "{apt}/sources.list";\n'
        'Dir::Etc::sourceparts "-";\n'
        f'Dir::State::lists "{apt}/lists";\n'
        f'Dir::Cache "{apt}";\n'
    )
    return configuration


def _mirror() -> str:
    """The Debian mirror this machine already uses for its packages."""
    command = ["apt-get", "indextargets", "--format", "$(REPO_URI)", "Identifier: Packages"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    mirrors = [line for line in done.stdout.split() if line.rstrip("/").endswith("/debian")]
    if not mirrors:
        raise SourcesMissingError("this machine has no Debian mirror among its package sources")
    return mirrors[0]


def unpack(directory: Path, host: str, port: int) -> Path:
    """Unpack pika and its tests, pointed at `host` and `port`; returns the root of the tree."""
    with tarfile.open(archive()) as packed:
        packed.extractall(directory, filter="data")
    (root,) = directory.glob("pika-*")
    for name in FILES_WITH_PORT:
        path = root / name
        text = path.read_text()
        assert DEFAULT_PORT in text, f"{name} no longer names port {DEFAULT_PORT}"
        text = text.replace(DEFAULT_PORT, str(port)).replace("host='localhost'", f"host='{host}'")
        path.write_text(text)
    # A package that says so goes before one of the same name in this editable installation.
    (root / "tests" / "__init__.py").touch()
    return root
