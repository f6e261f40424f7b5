"""Jobs for Spark on the command line: Java and pyspark are found or named, arguments passed on."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from leveret.cli import spark
from leveret.cli.app import app

JAVA_17 = 'openjdk version "17.0.15" 2025-04-15\nOpenJDK Runtime Environment'


def java(directory, told):
    """Make a program that says it is this Java."""
    program = directory / "bin" / "java"
    program.parent.mkdir(parents=True)
    program.write_text(f"#!/bin/sh\ncat >&2 <<END\n{told}\nEND\n")
    program.chmod(0o755)
    return program


@pytest.fixture
def run(monkeypatch, tmp_path, processes):
    """Return a function that runs a job's command, and returns result and what is executed."""
    package = tmp_path / "site" / "pyspark"
    package.mkdir(parents=True)
    (package / "__init__.py").touch()
    program = java(tmp_path / "jdk", JAVA_17)
    executed = []
    monkeypatch.setattr(spark, "find_spark", lambda: package)
    monkeypatch.setattr(os, "execve", lambda *arguments: executed.append(arguments))

    def run(*arguments):
        environment = {"JAVA_HOME": str(program.parent.parent)}
        result = CliRunner().invoke(app, ["spark", *arguments], env=environment)
        return result, executed[-1] if executed else None

    return run


@pytest.mark.parametrize(
    ("told", "number"),
    [
        (JAVA_17, 17),
        ('java version "1.8.0_392"', 8),
        ('openjdk version "25-ea" 2025-09-16', 25),
        ("bash: java: broken", None),
    ],
)
def test_the_number_of_a_java(told, number):
    assert spark.java_version(told) == number


@pytest.mark.usefixtures("processes")
def test_java_is_that_of_java_home_or_of_the_path(tmp_path):
    first, second = java(tmp_path / "a", JAVA_17), java(tmp_path / "b", JAVA_17)
    path = f"{second.parent}:/usr/bin:/bin"
    assert spark.find_java({"JAVA_HOME": str(tmp_path / "a"), "PATH": path}) == first
    assert spark.find_java({"PATH": path}) == second


@pytest.mark.usefixtures("processes")
@pytest.mark.parametrize(
    ("told", "text"),
    [
        ('java version "11.0.2"', "is Java 11"),
        ("nothing", "tells no version"),
        (None, "no bin/java"),
    ],
)
def test_a_java_that_does_not_do_is_named(tmp_path, capsys, told, text):
    if told is not None:
        java(tmp_path, told)
    environment = {"JAVA_HOME": str(tmp_path), "PATH": "/usr/bin:/bin"}
    with pytest.raises(spark.typer.Exit):
        spark.find_java(environment)
    (line,) = capsys.readouterr().err.splitlines()
    assert text in line
    assert "install Java 17" in line


def test_a_pyspark_that_does_not_do_is_named(monkeypatch, capsys):
    monkeypatch.setattr(spark, "find_spec", lambda _: None)
    with pytest.raises(spark.typer.Exit):
        spark.find_spark()
    assert "pip install 'leveret[spark]'" in capsys.readouterr().err
    monkeypatch.setattr(spark, "find_spec", lambda _: pytest.__spec__)
    monkeypatch.setattr(spark, "version", lambda _: "3.5.1")
    with pytest.raises(spark.typer.Exit):
        spark.find_spark()
    assert "3.5.1 is installed" in capsys.readouterr().err


def test_arguments_are_passed_on_as_they_are(run):
    result, (program, command, environment) = run(
        *("export", "crates", "--to", "dir", "--json", "--master", "local[1]", "-x")
    )
    assert result.exit_code == 0, result.output
    assert program == sys.executable
    assert command[1:] == [
        *("-m", "leveret.spark.jobs", "export"),
        *("crates", "--to", "dir", "--json", "--master", "local[1]", "-x"),
    ]
    assert environment["PYSPARK_PYTHON"] == sys.executable
    assert environment["JAVA_HOME"].endswith("jdk")


def test_a_cluster_gets_the_job_by_spark_submit(run):
    _, (program, command, _) = run(
        *("export", "crates", "--master=spark://head:7077", "--to", "dir"),
        *("--conf", "spark.executor.memory=4g"),
    )
    assert Path(program).parts[-3:] == ("pyspark", "bin", "spark-submit")
    assert command[1:] == [
        *("--master", "spark://head:7077", "--conf", "spark.executor.memory=4g"),
        *(str(spark.JOBS_FILE), "export", "crates", "--to", "dir"),
    ]
    assert spark.JOBS_FILE.is_file()


def test_the_help_is_the_jobs_own(run):
    result, executed = run("export", "--help")
    assert executed is None
    assert result.exit_code == 0
    assert "usage: leveret spark export" in result.output
    assert "--until-time" in result.output
