import contextlib
import json
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from leveret.mgmt_ui.operations.runtime import Listener
from leveret.mgmt_ui.readiness import tell_ready, tell_serving, tell_stopping
from tests.support.waiting import LIMIT_SECONDS

LISTENERS = [Listener("amqp/ssl", "127.0.0.1", 1), Listener("http/prometheus", "::1", 2)]
LINE = "amqps=127.0.0.1:1 prometheus=::1:2"


@pytest.fixture(params=["path", "abstract"])
def manager(request, tmp_path, monkeypatch):
    """The socket of a service manager."""
    address = str(tmp_path / "notify") if request.param == "path" else f"\0{tmp_path}"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listening:
        listening.bind(address)
        listening.settimeout(30)
        monkeypatch.setenv("NOTIFY_SOCKET", address.replace("\0", "@"))
        yield listening


def test_ready_line_and_service_manager_say_the_same(manager, capsys):
    tell_ready(LISTENERS, Path("/data"), 0.1, "text")
    assert capsys.readouterr().out == f"ready {LINE} data=/data\n"
    assert manager.recv(1000).decode() == f"READY=1\nSTATUS=Serving {LINE}"
    tell_stopping()
    assert manager.recv(1000) == b"STOPPING=1"


def test_ready_line_is_json_where_the_log_is(capsys, monkeypatch):
    monkeypatch.delenv("NOTIFY_SOCKET", raising=False)
    tell_ready(LISTENERS, Path("/data"), 0.1, "json")
    said = json.loads(capsys.readouterr().out)
    assert said == {"ready": {"amqps": "127.0.0.1:1", "prometheus": "::1:2", "data": "/data"}}


def test_ready_tells_where_the_pages_are(caplog):
    caplog.set_level("INFO")
    tell_ready([Listener("http", "0.0.0.0", 15672)], Path("/data"), 1.25, "text")
    assert "ready after 1.2 s: the web UI is at http://localhost:15672/" in caplog.text


def test_log_says_that_amqp_is_served_before_the_other_ports(caplog):
    caplog.set_level("INFO")
    tell_serving(LISTENERS[:1], LISTENERS[1:])
    assert caplog.messages == ["AMQP clients are served at 127.0.0.1:1; starting prometheus"]
    tell_serving(LISTENERS[:1], [])
    assert len(caplog.messages) == 1  # the line of readiness says it


def test_without_a_manager_the_line_is_all(capsys, monkeypatch, caplog):
    monkeypatch.delenv("NOTIFY_SOCKET", raising=False)
    tell_ready(LISTENERS, Path("/data"), 0.1, "text")
    assert capsys.readouterr().out.startswith("ready ")
    assert not caplog.records


def test_manager_that_is_gone_stops_nothing(tmp_path, monkeypatch, caplog):
    monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "nobody"))
    tell_stopping()
    assert "cannot tell the service manager 'STOPPING'" in caplog.text


def test_a_ready_line_that_nobody_reads_stops_nothing(manager, monkeypatch, caplog):
    with contextlib.suppress(OSError), Path("/dev/full").open("w") as full:
        monkeypatch.setattr("sys.stdout", full)
        for _ in range(2):
            tell_ready(LISTENERS, Path("/data"), 0.1, "text")
            assert manager.recv(1000).startswith(b"READY=1\n")
    (told,) = caplog.messages
    assert told.startswith("cannot print that the node is ready: No space left on device")


@pytest.mark.usefixtures("processes")
@pytest.mark.smoke
@pytest.mark.parametrize("stdout", ["null", "full"])
def test_node_tells_its_manager(tmp_path, stdout):
    address = tmp_path / "notify"
    with (
        socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listening,
        (Path("/dev") / stdout).open("w") as output,
    ):
        listening.bind(str(address))
        listening.settimeout(30)
        command = [sys.executable, "-m", "leveret", "serve", "--data-dir", str(tmp_path / "data")]
        command += ["--port", "0", "--http-port", "0", "--prometheus-port", "-1"]
        environment = {"NOTIFY_SOCKET": str(address), "PYTHONPATH": "."}
        with subprocess.Popen(command, stdout=output, env=environment) as process:
            assert listening.recv(1000).startswith(b"READY=1\n")
            process.send_signal(signal.SIGTERM)
            assert listening.recv(1000) == b"STOPPING=1"
            assert process.wait(LIMIT_SECONDS) == 0
