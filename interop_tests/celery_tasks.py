"""The Celery application that test_celery.py runs as a worker process and calls."""

from __future__ import annotations

import os
from typing import Any

from celery import Celery  # type: ignore[import-untyped]

app = Celery("interop", broker=os.environ.get("INTEROP_BROKER_URL"), backend="rpc://")
app.conf.update(
    task_default_queue="interop.celery",
    worker_hijack_root_logger=False,
    broker_connection_retry_on_startup=True,
    result_expires=60,
)


@app.task  # type: ignore[untyped-decorator]
def add(left: int, right: int) -> int:
    return left + right


@app.task  # type: ignore[untyped-decorator]
def fail(text: str) -> None:
    raise ValueError(text)


@app.task(bind=True, max_retries=3)  # type: ignore[untyped-decorator]
def succeed_at_last(self: Any, wanted_attempt: int) -> int:
    attempt = int(self.request.retries)
    if attempt < wanted_attempt:
        raise self.retry(countdown=0.1)
    return attempt
