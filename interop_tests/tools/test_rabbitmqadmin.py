"""rabbitmqadmin of Debian's package lists, declares, publishes, gets, exports and imports."""

from __future__ import annotations

import json
import shutil
import subprocess
from typing import TYPE_CHECKING

import pytest

from tests.support.waiting import LIMIT_SECONDS

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from interop_tests.brokers import LeveretBroker

PROGRAM = shutil.which("rabbitmqadmin")
LISTS = (
    *("users", "vhosts", "connections", "exchanges", "bindings", "permissions", "channels"),
    *("consumers", "queues", "policies", "operator_policies", "parameters", "nodes"),
    "vhost_limits",
)
pytestmark = pytest.mark.skipif(PROGRAM is None, reason="rabbitmqadmin is not installed")


@pytest.fixture
def admin(leveret_http: LeveretBroker) -> Callable[..., str]:
    def run(*arguments: str) -> str:
        command = [str(PROGRAM), "--host", "127.0.0.1", "--port", str(leveret_http.http_port)]
        done = subprocess.run(
            [*command, *arguments],
            capture_output=True,
            text=True,
            timeout=LIMIT_SECONDS,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    return run


@pytest.mark.covers("B-445")
@pytest.mark.parametrize("kind", LISTS)
def test_lists(admin: Callable[..., str], kind: str) -> None:
    assert isinstance(json.loads(admin("-f", "raw_json", "list", kind)), list)
    admin("list", kind)


@pytest.mark.covers("B-445")
def test_overview(admin: Callable[..., str]) -> None:
    assert "leveret" in admin("show", "overview")


@pytest.mark.covers("B-445")
def test_a_day_with_rabbitmqadmin(admin: Callable[..., str], tmp_path: Path) -> None:
    admin("declare", "vhost", "name=tool")
    v = ("-V", "tool")
    admin(*v, "declare", "queue", "name=q", "durable=true")
    admin(*v, "declare", "exchange", "name=x", "type=topic")
    admin(*v, "declare", "binding", "source=x", "destination=q", "routing_key=a.#")
    admin(*v, "declare", "policy", "name=p", "pattern=^q", 'definition={"max-length":10}')
    admin(*v, "declare", "operator_policy", "name=o", "pattern=^q", 'definition={"max-length":9}')
    admin("declare", "user", "name=u", "password=p", "tags=monitoring")
    admin("declare", "permission", "vhost=tool", "user=u", "configure=.*", "write=.*", "read=.*")
    admin("declare", "vhost_limit", "vhost=tool", "name=max-queues", "value=50")
    assert "Message published" in admin(
        *v, "publish", "exchange=x", "routing_key=a.b", "payload=hello"
    )
    (got,) = json.loads(admin(*v, "-f", "raw_json", "get", "queue=q", "ackmode=ack_requeue_false"))
    assert (got["payload"], got["routing_key"]) == ("hello", "a.b")
    admin(*v, "publish", "exchange=x", "routing_key=a.b", "payload=more")
    admin(*v, "purge", "queue", "name=q")
    file = tmp_path / "definitions.json"
    admin("export", str(file))
    admin(*v, "delete", "queue", "name=q")
    admin("import", str(file))
    assert "q" in admin(*v, "list", "queues", "name")
    admin(
        *v,
        "delete",
        "binding",
        "source=x",
        "destination_type=queue",
        "destination=q",
        "properties_key=a.%23",
    )
    for thing in ("queue name=q", "exchange name=x", "policy name=p", "operator_policy name=o"):
        admin(*v, "delete", *thing.split())
    admin("delete", "user", "name=u")
    admin("delete", "vhost", "name=tool")
