"""The command line: on a data directory of its own, or on that of a node that runs."""

import pytest

from leveret.storage import health_checks, state_check
from tests.support.command_line import CommandLine, run_here
from tests.support.node import node_in_thread


@pytest.fixture
def leveret(tmp_path):
    return CommandLine(tmp_path)


@pytest.fixture(scope="module")
def node(tmp_path_factory):
    """One node for all tests of a file, which leave it as it was."""
    with node_in_thread(tmp_path_factory.mktemp("node"), login_delay_seconds=0.05) as node:
        yield node


@pytest.fixture
def channel(node):
    with node.connected() as connection:
        channel = connection.channel()
        channel.confirm_delivery()
        yield channel


@pytest.fixture
def sound_state(monkeypatch):
    """Have `leveret doctor` read an LMDB environment here: a sound one kills no process."""
    here = run_here(lambda words: state_check.main(words[0], deep="deep" in words[1:]))
    monkeypatch.setattr(health_checks, "subprocess", here)
