"""The README as somebody with a plain Debian follows it, from the clone to an installed command.

`make first-hour` runs it: as root, with the network, for some ten minutes. It makes a root
directory in which nothing is installed but Debian's smallest system, and copies every command from
the page.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import socket
import subprocess
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.support.http import HttpClient
from tests.test_readme import BLOCK, PASSWORD, PRINTED, README, ROOT

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = [
    pytest.mark.clean_root,
    pytest.mark.usefixtures("processes"),
    pytest.mark.timeout(3600),
]

PORTS = (5672, 15672, 15692)  # those of the page
SETUP_SECONDS_MAX = 1800
COMMAND_SECONDS_MAX = 900
STOP_SECONDS_MAX = 20
CERTIFICATES = "etc/ssl/certs/ca-certificates.crt"
# How this machine reaches the network, which a new machine would know, too.
NETWORK = re.compile(r"(https?|no)_proxy", re.IGNORECASE)


class CleanRoot:
    """A root directory with a system of its own; the network is this machine's."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.environment = {
            "HOME": "/root",
            "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
            "LANG": "C.UTF-8",
            **{name: value for name, value in os.environ.items() if NETWORK.fullmatch(name)},
        }
        trusted = os.environ.get("SSL_CERT_FILE")  # a proxy may have an authority of its own
        if trusted is not None:
            shutil.copy(trusted, path / CERTIFICATES)
            self.environment["PIP_CERT"] = f"/{CERTIFICATES}"

    def command(self, script: str) -> list[str]:
        """Return the command that runs a shell script there, with /proc and /dev."""
        inside = ["mount -t proc proc {0}/proc", "mount --rbind /dev {0}/dev"]
        inside += ['exec chroot {0} bash -euo pipefail -c "$1"']
        mounted = " && ".join(inside).format(self.path)
        return ["unshare", "--mount", "sh", "-c", mounted, "sh", script]

    def run(self, script: str, *, stdin: str = "") -> str:
        """Return the output of a script, which must succeed."""
        done = subprocess.run(
            self.command(script),
            env=self.environment,
            input=stdin,
            capture_output=True,
            text=True,
            check=False,
            timeout=COMMAND_SECONDS_MAX,
        )
        assert done.returncode == 0, (script, done.stdout[-4000:], done.stderr[-4000:])
        return done.stdout

    @contextmanager
    def serving(self, script: str, log: Path) -> Iterator[None]:
        """Run a node in the foreground until Ctrl-C; from its ready line on."""
        with log.open("wb") as output:
            process = subprocess.Popen(
                self.command(script),
                env=self.environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        try:
            deadline = time.monotonic() + COMMAND_SECONDS_MAX
            while not re.search(r"^ready ", log.read_text(), re.MULTILINE):
                assert process.poll() is None, log.read_text()[-4000:]
                assert time.monotonic() < deadline, log.read_text()[-4000:]
                time.sleep(0.2)
            yield
            os.killpg(process.pid, signal.SIGINT)
            process.wait(STOP_SECONDS_MAX)
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()


@pytest.fixture(scope="module")
def root(tmp_path_factory) -> Iterator[CleanRoot]:
    if os.geteuid() != 0 or shutil.which("debootstrap") is None:
        pytest.skip("a root directory is made by root, with debootstrap (make first-hour)")
    taken = [port for port in PORTS if is_taken(port)]
    assert not taken, f"something listens on {taken}, the ports of the README: stop it"
    path = tmp_path_factory.mktemp("clean") / "root"
    suite = re.search(r"^VERSION_CODENAME=(\S+)", Path("/etc/os-release").read_text(), re.MULTILINE)
    assert suite is not None
    subprocess.run(
        ["debootstrap", "--variant=minbase", "--include=ca-certificates", suite[1], str(path)],
        check=True,
        timeout=SETUP_SECONDS_MAX,
    )
    yield CleanRoot(path)
    shutil.rmtree(path)


def is_taken(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def shown(pattern: str) -> str:
    """Return the README's commands there, as people would copy them."""
    found = re.search(pattern, README, re.MULTILINE)
    assert found is not None, f"the README does not say {pattern}"
    return found[1]


def test_first_hour(root, tmp_path):
    """From a plain system to a delayed message, an administrator of one's own, and the UI."""
    source = root.path / "srv" / "leveret.git"
    subprocess.run(["git", "clone", "-q", "--bare", str(ROOT), str(source)], check=True)
    root.run("apt-get update -qq")
    root.run(f"DEBIAN_FRONTEND=noninteractive {shown(r'`(apt-get install [^`]+)`')} -y -qq")
    clone, enter, serve = re.findall(
        r"^    (git clone .*|cd leveret|make serve)$", README, re.MULTILINE
    )
    root.run(f"cd && {clone.replace('<this repository>', '/srv/leveret.git')}")
    in_clone = f"cd && {enter} && "
    printed = []
    with root.serving(in_clone + serve, tmp_path / "serve.log"):
        pip_install = shown(r"`(\S*pip install pika)`")
        root.run(in_clone + pip_install)
        python = pip_install.replace("pip install pika", "python")
        for number, (language, text) in enumerate(BLOCK.findall(README)):
            if language == "python":
                (root.path / "root" / f"{number}.py").write_text(text)
                printed.append(root.run(f"{in_clone} {python} ~/{number}.py"))
                continue
            for line in text.splitlines():
                if line.startswith("$ "):
                    root.run(in_clone + line.removeprefix("$ "), stdin=PASSWORD + "\n")
        assert printed == PRINTED
        with HttpClient("localhost:15672", user=None) as browser:
            assert browser.get("/api/overview", auth=("admin", PASSWORD)).status_code == 200
            assert browser.get("/api/overview", auth=("guest", "guest")).status_code == 401
            page = browser.get("/", follow_redirects=True)
            assert (page.status_code, "Leveret" in page.text) == (200, True)
    assert not any(map(is_taken, PORTS))


def test_installed_command(root, tmp_path):
    """`make install`, where the system's Python is not to be installed into (PEP 668)."""
    assert list((root.path / "usr" / "lib").glob("python3*/EXTERNALLY-MANAGED"))
    root.run(f"cd ~/leveret && {shown(r'`(make install)`')}")
    assert root.run("cd / && leveret --version").startswith("leveret ")
    command = shown(r"^    (leveret serve --data-dir .*)$")
    assert command.endswith("--host 0.0.0.0")
    command = command.replace("0.0.0.0", "127.0.0.1")  # a test opens nothing to the network
    with root.serving(f"cd / && {command}", tmp_path / "installed.log"):
        assert "{" in root.run("cd / && LEVERET_DATA_DIR=/var/lib/leveret leveret health --json")
