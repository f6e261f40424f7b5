"""pika's Twisted adapter, in a process of its own: a reactor runs once."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from tests.support.waiting import LIMIT_SECONDS

if TYPE_CHECKING:
    from interop_tests.brokers import Broker

SCRIPT = Path(__file__).with_name("twisted_round_trip.py")


def test_twisted_adapter(broker: Broker) -> None:
    command = [sys.executable, str(SCRIPT), broker.address.host, str(broker.address.port)]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=LIMIT_SECONDS, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
