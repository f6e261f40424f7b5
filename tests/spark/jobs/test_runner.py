"""Jobs are run by their arguments: exit status, what is printed where, errors in one line."""

from __future__ import annotations

import io
import json
import signal

import pytest

from leveret.cli.spark import JOBS as COMMANDS
from leveret.spark.errors import BrokerUnreachableError
from leveret.spark.jobs import runner
from leveret.spark.jobs.job import JobError, SparkJob
from leveret.spark.option_reader import OptionError


class SparkError(Exception):
    """Error as Spark would raise it."""


SparkError.__module__ = "pyspark.errors.exceptions.captured"
IN_A_WORKER = """[PYTHON_DATA_SOURCE_ERROR] Failed when Python data source instance reads:
Traceback (most recent call last):
  File "worker.py", line 1, in main
leveret.spark.errors.DataLossError: offsets 3 to 5 are not there any more
 SQLSTATE: 38000
JVM stacktrace: …
"""


@pytest.fixture
def run(monkeypatch):
    """Return a function that runs a job made of what it does, and returns what happened."""

    def run(does, *arguments):
        job = SparkJob("count crates", lambda parser: parser.add_argument("--crates"), does)
        monkeypatch.setattr(runner, "JOBS", ("count",))
        monkeypatch.setattr(runner, "job_of", lambda _: job)
        output = io.StringIO()
        return runner.main(["count", *arguments], output), output.getvalue()

    before = signal.getsignal(signal.SIGTERM)
    yield run
    signal.signal(signal.SIGTERM, before)


def raising(error):
    def does(_):
        raise error

    return does


def test_the_command_line_has_the_same_jobs():
    assert tuple(COMMANDS) == runner.JOBS
    for name, summary in COMMANDS.items():
        assert runner.job_of(name).summary.lower() + "." == summary.lower()


@pytest.mark.parametrize("name", runner.JOBS)
def test_each_job_explains_itself(name, capsys):
    assert runner.main([name, "--help"], io.StringIO()) == 0
    assert "--servers" in capsys.readouterr().out


def test_the_summary_is_json_or_lines(run):
    summary = {"messages": 12345, "files": [{"name": "a", "rows": 5}], "differences": []}
    status, text = run(lambda _: summary, "--json")
    assert (status, json.loads(text)) == (0, summary)
    assert run(lambda _: summary)[1].splitlines() == [
        "messages: 12,345",
        "files: 1",
        "  name a, rows 5",
        "differences: none",
    ]


def test_what_a_job_finds_is_its_status(run):
    assert run(lambda _: {"ok": False})[0] == 1
    assert run(lambda _: {"ok": True}) == (0, "ok: yes\n")


def test_a_job_is_told_its_arguments(run):
    def does(context):
        return {"crates": context.arguments.crates, **context.source_options()}

    _, text = run(does, "--crates", "5", "--servers", "a:1,b:2", "--vhost", "shop", "--json")
    told = json.loads(text)
    assert (told["crates"], told["servers"], told["vhost"]) == ("5", "a:1,b:2", "shop")


def test_the_password_is_in_the_environment_or_in_a_file(run, monkeypatch, tmp_path):
    def does(context):
        return {"password": context.connection.password}

    assert run(does)[1] == "password: guest\n"
    monkeypatch.setenv("LEVERET_PASSWORD", "from-environment")
    assert run(does)[1] == "password: from-environment\n"
    (tmp_path / "password").write_text("from-file\n")
    assert run(does, "--password-file", str(tmp_path / "password"))[1] == "password: from-file\n"


@pytest.mark.parametrize(
    ("error", "status", "text"),
    [
        (JobError("there are no crates"), 1, "there are no crates"),
        (OptionError("'crates' is wrong"), 2, "'crates' is wrong"),
        (BrokerUnreachableError("nobody answers"), 1, "nobody answers"),
        (SparkError(IN_A_WORKER), 1, "offsets 3 to 5 are not there any more"),
        (SparkError("[PATH_NOT_FOUND] no /crates\nmore"), 1, "[PATH_NOT_FOUND] no /crates"),
        (ModuleNotFoundError("No module named 'pyspark'"), 1, "pip install 'leveret[spark]'"),
    ],
)
def test_errors_are_one_line(run, capsys, error, status, text):
    assert run(raising(error)) == (status, "")
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("leveret spark count: ")
    assert text in line


def test_our_own_faults_keep_their_traceback(run):
    with pytest.raises(ZeroDivisionError):
        run(raising(ZeroDivisionError()))


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["--crate"], "expected one argument"),
        (["--conf", "memory"], "not NAME=VALUE"),
        (["--servers", "http://"], "no HOST:PORT"),
        (["--password-file", "/no/such/file"], "cannot be read"),
        (["--tls-key-file", "key.pem"], "'tlsCertFile' is missing"),
    ],
)
def test_wrong_arguments_are_one_line(run, capsys, arguments, text):
    assert run(lambda _: {}, *arguments) == (2, "")
    (line,) = capsys.readouterr().err.splitlines()
    assert text in line


def test_a_job_that_does_not_exist(capsys):
    assert runner.main(["dance"], io.StringIO()) == 2
    assert "dance" in capsys.readouterr().err


def test_signals_end_a_job(run):
    assert run(raising(KeyboardInterrupt()))[0] == 130
    assert run(lambda _: signal.raise_signal(signal.SIGTERM))[0] == 143
