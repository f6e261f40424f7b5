"""A Prometheus of the distribution, as a process of the test's own."""

from __future__ import annotations

import json
import shutil
import subprocess
import time
import urllib.error
import urllib.parse
import urllib.request
from typing import TYPE_CHECKING, Any, Self

import pytest

from tests.support.ports import free_port

if TYPE_CHECKING:
    from pathlib import Path

START_SECONDS_MAX = 30
CONFIGURATION = """
global:
  scrape_interval: 1s
  scrape_timeout: 1s
scrape_configs:
  - job_name: leveret
    metrics_path: {path}
    static_configs:
      - targets: ["{target}"]
"""


def require(program: str) -> str:
    """The path of a program of the package `prometheus`."""
    found = shutil.which(program)
    if found is None:
        pytest.skip(f"{program} is not installed (make interop)")
    return found


class Prometheus:
    """Scrapes one target every second, from `with` to its end."""

    def __init__(self, directory: Path, target: str, path: str = "/metrics") -> None:
        self._directory = directory
        self._port = free_port()
        self._configuration = directory / "prometheus.yml"
        self._configuration.write_text(CONFIGURATION.format(target=target, path=path))

    def __enter__(self) -> Self:
        with (self._directory / "prometheus.log").open("wb") as log:
            self._process = subprocess.Popen(
                [
                    require("prometheus"),
                    f"--config.file={self._configuration}",
                    f"--storage.tsdb.path={self._directory / 'tsdb'}",
                    f"--web.listen-address=127.0.0.1:{self._port}",
                ],
                stdout=log,
                stderr=log,
            )
        until = time.monotonic() + START_SECONDS_MAX
        while not self._is_ready():
            assert self._process.poll() is None, (self._directory / "prometheus.log").read_text()
            assert time.monotonic() < until, "Prometheus does not become ready"
            time.sleep(0.1)
        return self

    def __exit__(self, *_: object) -> None:
        self._process.terminate()
        self._process.wait(START_SECONDS_MAX)

    def _is_ready(self) -> bool:
        try:
            with urllib.request.urlopen(self._url("/-/ready")):
                return True
        except OSError:
            return False

    def query(self, expression: str) -> list[dict[str, Any]]:
        """The samples that an expression has now."""
        query = urllib.parse.urlencode({"query": expression})
        try:
            with urllib.request.urlopen(self._url(f"/api/v1/query?{query}")) as response:
                found: list[dict[str, Any]] = json.load(response)["data"]["result"]
        except urllib.error.HTTPError as error:
            with error:
                raise AssertionError(f"{expression}: {error.read().decode()}") from None
        return found

    def await_scrape(self) -> dict[str, Any]:
        """How the last scrape went; the first one is waited for, and must succeed."""
        until = time.monotonic() + START_SECONDS_MAX
        while True:
            with urllib.request.urlopen(self._url("/api/v1/targets")) as response:
                active: list[dict[str, Any]] = json.load(response)["data"]["activeTargets"]
            if active and active[0]["health"] != "unknown":
                assert active[0]["health"] == "up", active[0]["lastError"]
                return active[0]
            assert time.monotonic() < until, "nothing is scraped"
            time.sleep(0.2)

    def _url(self, path: str) -> str:
        return f"http://127.0.0.1:{self._port}{path}"
