"""A Celery worker process."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from typing import TYPE_CHECKING, Any, Self

import pytest

from interop_tests.brokers import REPOSITORY, Process
from interop_tests.celery_tasks import SETTINGS_VARIABLE, application
from tests.support.waiting import LIMIT_SECONDS

if TYPE_CHECKING:
    import signal
    from pathlib import Path

PING_SECONDS = 0.5


class Worker:
    """A worker with these settings, ready once it answers a ping; `app` calls its tasks."""

    name = "interop@localhost"

    def __init__(self, directory: Path, settings: dict[str, Any], pool: str = "solo") -> None:
        self.app = application(settings)
        command = [sys.executable, "-m", "celery", "-A", "interop_tests.celery_tasks", "worker"]
        command += ["--pool", pool, "--concurrency", "1", "--hostname", self.name]
        command += ["--without-mingle", "--loglevel", "INFO"]
        environment = {SETTINGS_VARIABLE: json.dumps(settings), "PYTHONPATH": str(REPOSITORY)}
        log = directory / f"worker-{time.monotonic_ns()}.log"
        self._process = Process(command, log, environment)

    def __enter__(self) -> Self:
        try:
            self._await_ping()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        """Cold: what matters about a warm shutdown is a test's business."""
        self.kill()
        results = getattr(self.app.backend, "result_consumer", None)
        if results is not None and results._consumer is not None:
            results.stop()
        self.app.close()

    @property
    def log(self) -> str:
        return self._process.log.read_text(errors="replace")

    def signal(self, number: signal.Signals) -> None:
        """Signal the worker, not its pool."""
        self._process.popen.send_signal(number)

    def wait(self) -> int:
        """Its exit status, when it ends by itself."""
        try:
            return self._process.popen.wait(LIMIT_SECONDS)
        except subprocess.TimeoutExpired:
            pytest.fail(f"the worker did not end within {LIMIT_SECONDS} s:\n{self.log}")

    def kill(self) -> None:
        """End worker and pool without a goodbye."""
        self._process.kill()

    def _await_ping(self) -> None:
        deadline = time.monotonic() + LIMIT_SECONDS
        while not self.app.control.ping([self.name], timeout=PING_SECONDS):
            self._process.check_alive()
            assert time.monotonic() < deadline, f"the worker answers no ping:\n{self.log}"
