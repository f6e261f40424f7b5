"""The Celery application of the tests: of a worker process, or of whoever calls it."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from celery import Celery  # type: ignore[import-untyped]

from tests.support.waiting import wait_until

SETTINGS_VARIABLE = "INTEROP_CELERY_SETTINGS"  # JSON, for the worker process


def application(settings: dict[str, Any]) -> Celery:
    """An application with these settings and the tasks that every test may call."""
    app = Celery("interop", backend=settings.get("result_backend", "rpc://"))
    app.conf.update(worker_hijack_root_logger=False, broker_connection_retry_on_startup=True)
    app.conf.update(result_expires=60, broker_connection_timeout=30, **settings)

    @app.task(name="add", shared=False)  # type: ignore[untyped-decorator]
    def add(left: int, right: int) -> int:
        return left + right

    @app.task(name="total", shared=False)  # type: ignore[untyped-decorator]
    def total(numbers: list[int]) -> int:
        return sum(numbers)

    @app.task(name="fail", shared=False)  # type: ignore[untyped-decorator]
    def fail(text: str) -> None:
        raise ValueError(text)

    @app.task(name="succeed_at_last", shared=False, bind=True, max_retries=3)  # type: ignore[untyped-decorator]
    def succeed_at_last(self: Any, wanted_attempt: int) -> int:
        attempt = int(self.request.retries)
        if attempt < wanted_attempt:
            raise self.retry(countdown=0.1)
        return attempt

    @app.task(name="note", shared=False)  # type: ignore[untyped-decorator]
    def note(path: str, text: str) -> None:
        with Path(path).open("a") as notes:
            notes.write(f"{text}\n")

    @app.task(name="hold", shared=False, bind=True)  # type: ignore[untyped-decorator]
    def hold(self: Any, directory: str) -> bool:
        """Make the file `held`, wait for the file `release`; whether the message came again."""
        (Path(directory) / "held").touch()
        wait_until((Path(directory) / "release").exists, "the release")
        return bool(self.request.delivery_info["redelivered"])

    return app


app = application(json.loads(os.environ.get(SETTINGS_VARIABLE, "{}")))
