"""Command of LavinMQ, by its version and the durability asked for."""

import pytest

from bench import lavinmq
from bench.lavinmq import LavinMq
from bench.processes import BenchError

NEW = (
    "--mqtt-port=PORT --metrics-http-port=PORT --clustering-port=PORT --control-unix-path --no-sync"
)
OLD = "--data-dir --bind"


@pytest.fixture
def command(monkeypatch, tmp_path):
    """Return a function from usage and durability to the command."""

    def command(usage, durability):
        monkeypatch.setattr(lavinmq, "_output", lambda option: usage)
        return LavinMq(tmp_path, durability, None)._command()

    return command


@pytest.mark.parametrize(
    ("usage", "durability", "syncs"),
    [(NEW, "os", False), (NEW, "fsync", True), (OLD, "os", True)],
)
def test_no_sync_is_asked_for_where_the_version_knows_it(command, usage, durability, syncs):
    assert ("--no-sync" not in command(usage, durability)) == syncs


def test_a_version_that_never_flushes_is_no_peer_of_fsync(command):
    with pytest.raises(BenchError, match="never flushes before it confirms"):
        command(OLD, "fsync")


def test_it_meets_no_other_node(command, tmp_path):
    new = command(NEW, "os")
    assert f"--control-unix-path={tmp_path / 'control'}" in new
    assert "--mqtt-port=-1" in new
    assert new[new.index("--config") + 1] == str(tmp_path / "lavinmq.ini")
    assert not any(word.startswith("--control-unix-path") for word in command(OLD, "os"))
