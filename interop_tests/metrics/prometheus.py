"""A Prometheus of the distribution, as a process of the test's own."""

from __future__ import annotations

import json
import shutil
import subprocess
from typing import TYPE_CHECKING, Any, Self

import httpx
import pytest

from interop_tests.brokers import free_port
from tests.support.http import HttpClient, http_text
from tests.support.waiting import LIMIT_SECONDS, wait_until

if TYPE_CHECKING:
    from pathlib import Path

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
        wait_until(lambda: self._process.poll() is not None or self._is_ready(), "Prometheus")
        assert self._process.poll() is None, (self._directory / "prometheus.log").read_text()
        return self

    def __exit__(self, *_: object) -> None:
        self._process.terminate()
        self._process.wait(LIMIT_SECONDS)

    def _is_ready(self) -> bool:
        try:
            http_text(self._url("/-/ready"))
        except httpx.HTTPError:
            return False
        return True

    def query(self, expression: str) -> list[dict[str, Any]]:
        """The samples that an expression has now."""
        with HttpClient(user=None) as client:
            answer = client.get(self._url("/api/v1/query"), params={"query": expression})
        assert answer.is_success, f"{expression}: {answer.text}"
        found: list[dict[str, Any]] = answer.json()["data"]["result"]
        return found

    def await_scrape(self) -> dict[str, Any]:
        """How the last scrape went; the first one is waited for, and must succeed."""
        wait_until(lambda: self._target().get("health", "unknown") != "unknown", "a scrape")
        target = self._target()
        assert target["health"] == "up", target["lastError"]
        return target

    def _target(self) -> dict[str, Any]:
        told = json.loads(http_text(self._url("/api/v1/targets")))
        active: list[dict[str, Any]] = told["data"]["activeTargets"]
        return active[0] if active else {}

    def _url(self, path: str) -> str:
        return f"http://127.0.0.1:{self._port}{path}"
