"""The command line: on a data directory of its own, or on that of a node that runs."""

import pytest

from tests.support.command_line import CommandLine
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
        yield connection.channel()
