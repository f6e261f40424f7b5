"""SIGTERM under load: confirms are answered, clients are told, nothing is lost or repeated."""

from __future__ import annotations

import subprocess

import pytest

from tests.harness.broker import REPOSITORY, SERVE, BrokerProcess
from tests.harness.traffic import Load, declare_topology, drain
from tests.support.waiting import LIMIT_SECONDS, wait_until

pytestmark = pytest.mark.usefixtures("processes")

SHUTDOWN_TEXT = "CONNECTION_FORCED - broker forced connection closure with reason 'shutdown'"


@pytest.mark.covers("B-316")
@pytest.mark.parametrize("durability", ["os", "fsync"])
@pytest.mark.smoke
def test_a_stop_answers_everyone_and_keeps_everything(tmp_path, seed, durability):
    load = Load(seed)
    account = load.account
    with BrokerProcess(tmp_path / "data", durability=durability) as broker:
        declare_topology(broker.port)
        for settled in (100, 200):
            account.round += 1
            load.start(broker.port)
            wait_until(lambda: len(account.settled) > settled)  # noqa: B023
            broker.stop()  # with status 0
            load.join()
            assert not account.troubles, account.troubles[:20]
            assert not account.lost_with
            assert account.closed_with == [SHUTDOWN_TEXT] * len(load.workers)
            account.closed_with.clear()
            broker.start()
        account.round += 1
        remaining = drain(broker.port, account)
        print(account)
        account.check(remaining)
        unanswered = set(remaining) - account.confirmed
        assert not unanswered, f"{len(unanswered)} were taken in and never confirmed"
        assert account.settled
        broker.check_untroubled()


@pytest.mark.smoke
def test_a_directory_has_one_node(tmp_path):
    with BrokerProcess(tmp_path / "data") as broker:
        second = serve(str(tmp_path / "data"))
        assert second.returncode != 0
        assert f"is in use by process {broker.popen.pid}" in second.stderr
        assert "Traceback" not in second.stderr
        assert broker.is_alive


@pytest.mark.parametrize("make", ["file", "missing-parent-is-a-file"])
def test_an_unusable_directory_is_named(tmp_path, make):
    blocker = tmp_path / "blocker"
    blocker.write_text("in the way")
    data = blocker if make == "file" else blocker / "data"
    refused = serve(str(data))
    assert refused.returncode != 0
    assert str(data) in refused.stderr
    assert "Traceback" not in refused.stderr


def serve(data: str) -> subprocess.CompletedProcess[str]:
    """A node that is expected to refuse to start."""
    return subprocess.run(
        [*SERVE, "--data-dir", data],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        timeout=LIMIT_SECONDS,
        check=False,
    )
