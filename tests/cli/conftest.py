"""The command line, in a data directory of its own."""

import pytest
from typer.testing import CliRunner

from leveret.cli.app import app
from tests.process import running_node


@pytest.fixture
def leveret(tmp_path):
    def run(*arguments, stdin="", status=0):
        result = CliRunner().invoke(
            app, list(arguments), input=stdin, env={"LEVERET_DATA_DIR": str(tmp_path)}
        )
        assert result.exit_code == status, result.output
        return result.output

    return run


@pytest.fixture(scope="module")
def data_dir(tmp_path_factory):
    return tmp_path_factory.mktemp("node")


@pytest.fixture(scope="module")
def port(data_dir):
    with running_node(data_dir) as port:
        yield port
