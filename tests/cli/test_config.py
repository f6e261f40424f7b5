import json

import pytest
from typer.testing import CliRunner

from leveret.cli.app import app


@pytest.fixture
def run(monkeypatch):
    """Run `leveret config …` with no variables but those given."""

    def run(*arguments, **variables):
        for name, value in variables.items():
            monkeypatch.setenv(name, value)
        return CliRunner().invoke(app, ["config", *arguments])

    return run


def test_show_names_the_source_of_each_value(run, tmp_path):
    file = tmp_path / "leveret.toml"
    file.write_text("port = 5673\n")
    done = run("show", "--changed", "--json", "--config", str(file), LEVERET_CHANNEL_MAX="100")
    assert json.loads(done.stdout) == [
        {"setting": "port", "value": 5673, "source": str(file)},
        {
            "setting": "channel_max",
            "value": 100,
            "source": "environment variable LEVERET_CHANNEL_MAX",
        },
    ]


@pytest.mark.parametrize("more", [[], ["--json"]])
def test_show_hides_secrets(run, more):
    done = run("show", *more, LEVERET_ENCRYPTION_KEY="c2VjcmV0")
    assert done.exit_code == 0
    assert "c2VjcmV0" not in done.stdout


def test_check_tells_every_problem_on_a_line_of_its_own(run):
    done = run("check", LEVERET_PORT="x", LEVERET_DURABILITY="maybe")
    assert done.exit_code == 1
    lines = done.stderr.splitlines()
    assert len(lines) == 2
    assert all(line.startswith("leveret: setting '") for line in lines)


def test_check_looks_for_the_files_that_settings_name(run, tmp_path):
    done = run("check", LEVERET_DEFINITIONS=str(tmp_path / "missing.json"))
    assert done.exit_code == 1
    assert "there is no file" in done.stderr
    assert run("check", LEVERET_DEFINITIONS=__file__).exit_code == 0


def test_sample_is_valid(run, tmp_path):
    file = tmp_path / "leveret.toml"
    file.write_text(run("sample").stdout)
    assert run("check", "--config", str(file)).exit_code == 0
