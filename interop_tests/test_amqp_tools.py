"""The programs of Debian's amqp-tools, which are built on the C client rabbitmq-c."""

from __future__ import annotations

import shutil
import subprocess
from typing import TYPE_CHECKING

import pytest

from tests.support.waiting import LIMIT_SECONDS

if TYPE_CHECKING:
    from interop_tests.brokers import Broker

pytestmark = pytest.mark.skipif(
    shutil.which("amqp-publish") is None, reason="amqp-tools are not installed (make interop)"
)


def run(
    broker: Broker, program: str, *arguments: str, said: bytes = b""
) -> subprocess.CompletedProcess[bytes]:
    command = [f"amqp-{program}", "--url", broker.address.url(), *arguments]
    return subprocess.run(
        command, input=said, capture_output=True, timeout=LIMIT_SECONDS, check=False
    )


def test_declare_publish_get_delete(broker: Broker) -> None:
    declared = run(broker, "declare-queue", "--queue", "tools.q", "--durable")
    assert declared.stdout.strip() == b"tools.q", declared.stderr
    for body in ("one", "two"):
        published = run(broker, "publish", "-r", "tools.q", "-p", "--body", body)
        assert published.returncode == 0, published.stderr
    assert run(broker, "get", "--queue", "tools.q").stdout == b"one"
    assert run(broker, "get", "--queue", "tools.q").stdout == b"two"
    assert run(broker, "get", "--queue", "tools.q").returncode == 2  # its way to say "empty"
    deleted = run(broker, "delete-queue", "--queue", "tools.q")
    assert deleted.stdout.strip() == b"0", deleted.stderr


def test_lines_published_and_consumed(broker: Broker) -> None:
    run(broker, "declare-queue", "--queue", "tools.lines", "--durable")
    lines = b"".join(b"line %d\n" % number for number in range(100))
    published = run(broker, "publish", "-r", "tools.lines", "-l", said=lines)
    assert published.returncode == 0, published.stderr
    consumed = run(broker, "consume", "--queue", "tools.lines", "--count", "100", "cat")
    assert consumed.stdout.splitlines() == lines.splitlines(), consumed.stderr
    run(broker, "delete-queue", "--queue", "tools.lines")


def test_large_body(broker: Broker) -> None:
    body = bytes(range(256)) * 4096
    run(broker, "declare-queue", "--queue", "tools.large")
    assert run(broker, "publish", "-r", "tools.large", said=body).returncode == 0
    assert run(broker, "get", "--queue", "tools.large").stdout == body
    run(broker, "delete-queue", "--queue", "tools.large")


def test_errors_are_reported(broker: Broker) -> None:
    deleted = run(broker, "delete-queue", "--queue", "tools.q", "--if-empty")
    assert deleted.returncode == 0, deleted.stderr
    missing = run(broker, "consume", "--queue", "tools.missing", "--count", "1", "cat")
    assert missing.returncode != 0
    assert b"no queue 'tools.missing' in vhost '/'" in missing.stderr
