"""The command line, in a data directory of its own."""

import pytest
from typer.testing import CliRunner

from leveret.cli.app import app


@pytest.fixture
def leveret(tmp_path):
    def run(*arguments, stdin="", status=0):
        result = CliRunner().invoke(
            app, list(arguments), input=stdin, env={"LEVERET_DATA_DIR": str(tmp_path)}
        )
        assert result.exit_code == status, result.output
        return result.output

    return run
