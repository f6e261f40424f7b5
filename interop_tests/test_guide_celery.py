"""The programs of docs/guide/celery.md: a worker, and a program that calls its tasks."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from typing import TYPE_CHECKING

import pytest

from interop_tests.brokers import REPOSITORY, LeveretBroker, Process, candidate
from tests.support.waiting import LIMIT_SECONDS, wait_until

if TYPE_CHECKING:
    from pathlib import Path

pytest.importorskip("celery")
pytestmark = pytest.mark.skipif(
    candidate() is not LeveretBroker, reason="the page is about queues that only Leveret has"
)

PAGE = (REPOSITORY / "docs" / "guide" / "celery.md").read_text()
PROGRAMS = re.findall(r"^```python celery\n((?s:.*?))^```$", PAGE, re.MULTILINE)
PRINTED = re.findall(r"^```text\n((?s:.*?))^```$", PAGE, re.MULTILINE)
LOGGED = re.findall(r"^The worker logs `(.*)`\.$", PAGE, re.MULTILINE)
FIRST_DELAY_SECONDS = 3  # of what the page schedules


def test_tasks_wait_and_are_retried(broker: LeveretBroker, tmp_path: Path) -> None:
    tasks, caller = PROGRAMS
    assert "localhost:5672" in tasks
    address = f"{broker.address.host}:{broker.address.port}"
    (tmp_path / "tasks.py").write_text(tasks.replace("localhost:5672", address))
    environment = {"PYTHONPATH": os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])}
    command = [sys.executable, "-m", "celery", "-A", "tasks", "worker"]
    worker = Process([*command, "--pool", "solo"], tmp_path / "worker.log", environment)
    try:
        began = time.monotonic()
        done = subprocess.run(
            [sys.executable, "-c", caller],
            env={**os.environ, **environment},
            capture_output=True,
            text=True,
            check=False,
            timeout=LIMIT_SECONDS,
        )
        assert (done.returncode, done.stdout) == (0, *PRINTED), done.stderr + worker.tail()
        assert time.monotonic() - began >= FIRST_DELAY_SECONDS
        (line,) = LOGGED
        wait_until(lambda: line in worker.tail(), "the task that the queue tries again")
    finally:
        worker.kill()
