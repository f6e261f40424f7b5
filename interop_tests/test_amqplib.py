"""The Node client amqplib: amqplib_scenarios.js, run by Node's own test runner."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.support.waiting import LIMIT_SECONDS

if TYPE_CHECKING:
    from interop_tests.brokers import Broker

HERE = Path(__file__).parent
SCENARIOS = 13

pytestmark = pytest.mark.skipif(
    shutil.which("node") is None or not (HERE / "node_modules" / "amqplib").exists(),
    reason="node or amqplib is not installed (make interop)",
)


@pytest.mark.covers("B-505")
def test_amqplib(broker: Broker) -> None:
    command = ["node", "--test", "--test-reporter=tap", "--test-timeout=30000"]
    done = subprocess.run(
        [*command, "amqplib_scenarios.js"],
        cwd=HERE,
        env={**os.environ, "INTEROP_BROKER_URL": broker.address.url()},
        capture_output=True,
        text=True,
        timeout=LIMIT_SECONDS,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"# pass {SCENARIOS}" in done.stdout, done.stdout
