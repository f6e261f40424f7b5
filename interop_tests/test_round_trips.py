"""The clients of other languages: the programs in clients/, each through two broker restarts."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

    from interop_tests.brokers import Broker

CLIENTS = Path(__file__).parent / "clients"
JARS = Path("/usr/share/java")  # where Debian's packages put what they build
GO_SOURCES = Path("/usr/share/gocode")
BUILD_SECONDS_MAX = 120

# What every program does, in this order; it names each part when that is over.
PARTS = ["route", "confirm", "settle", "properties", "return", "errors", "cancel", "stop", "kill"]
PARTS += ["close"]


@pytest.mark.covers("B-507")
def test_java(own_broker: Broker) -> None:
    _hold(own_broker, ["java", "-cp", java_class_path(), str(CLIENTS / "RoundTrip.java")])


@pytest.mark.covers("B-506")
def test_go(own_broker: Broker, tmp_path: Path) -> None:
    _need(shutil.which("go") is not None and GO_SOURCES.exists())
    program = tmp_path / "round_trip"
    # Debian's Go libraries are sources to be found by path, without modules.
    settings = {"GO111MODULE": "off", "GOPATH": str(GO_SOURCES), "CGO_ENABLED": "0"}
    subprocess.run(
        ["go", "build", "-o", str(program), str(CLIENTS / "round_trip.go")],
        env={**os.environ, **settings},
        check=True,
        timeout=BUILD_SECONDS_MAX,
    )
    _hold(own_broker, [str(program)])


def test_ruby(own_broker: Broker) -> None:
    _need(shutil.which("ruby") is not None and _has_bunny())
    _hold(own_broker, ["ruby", "-W0", str(CLIENTS / "round_trip.rb")])


def java_class_path() -> str:
    """Return where the Java client is; skip the test where it is not installed."""
    jars = [JARS / f"{name}.jar" for name in ("amqp-client", "slf4j-api", "slf4j-nop")]
    _need(shutil.which("javac") is not None and all(jar.exists() for jar in jars))
    return os.pathsep.join(map(str, jars))


def _need(there: bool) -> None:
    if not there:
        pytest.skip("the language or its client is not installed (make interop)")


def _has_bunny() -> bool:
    asked = subprocess.run(["ruby", "-e", "require 'bunny'"], capture_output=True, check=False)
    return asked.returncode == 0


def _hold(broker: Broker, command: list[str]) -> None:
    """Run a program to its end, restarting the broker when it asks for that."""
    parts = []
    with _started(broker, command) as program:
        assert program.stdout is not None
        assert program.stdin is not None
        for line in program.stdout:
            word, _, what = line.strip().partition(" ")
            if word == "restart":
                getattr(broker, what)()
                broker.start()
                program.stdin.write("restarted\n")
                program.stdin.flush()
            else:
                parts.append(what)
        assert program.wait(timeout=60) == 0, program.args
    assert parts == PARTS


@contextlib.contextmanager
def _started(broker: Broker, command: list[str]) -> Iterator[subprocess.Popen[str]]:
    """The program, which is killed when its test ends before it; it says on stderr what fails."""
    program = subprocess.Popen(
        command,
        env={**os.environ, "INTEROP_BROKER_URL": broker.address.url()},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    with program:
        try:
            yield program
        finally:
            program.kill()
