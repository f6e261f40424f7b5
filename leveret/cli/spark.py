"""`leveret spark`: jobs for Spark, each run by an interpreter of its own.

The command line knows the names of the jobs, and finds Java and Spark. Everything else is the
job's: its arguments, signals, output and exit status.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Final

import typer

import leveret
from leveret.cli.group import Group
from leveret.cli.session import fail

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["JOBS", "app"]

# In the order of the documents.
JOBS: Final = {
    "archive": "Archive topics in Parquet files, batch by batch.",
    "verify": "Compare an archive with its manifests and with the log.",
    "replay": "Publish archived messages, or those of a topic, again.",
    "export": "Write topics into files with plain columns: Parquet, CSV or JSON.",
    "usage": "Report messages and bytes by hour, user and queue, checked against the logs.",
    "dlq": "Report dead letters by reason, queue, exchange, routing key and day.",
}
JAVA_MIN: Final = 17
SPARK_MIN: Final = (4, 2)
JAVA_SECONDS_MAX: Final = 30
INSTALL_SPARK: Final = "pip install 'leveret[spark]' installs it"
INSTALL_JAVA: Final = (
    f"install Java {JAVA_MIN} or later (on Debian: apt install openjdk-17-jre-headless), or set "
    "JAVA_HOME to where it is"
)
JOBS_FILE: Final = Path(leveret.__file__).parent / "spark" / "jobs" / "__main__.py"

app = Group("Jobs for Spark: archives of topics, replays, exports, reports.")


def _register(name: str, summary: str) -> None:
    def command(context: typer.Context) -> None:
        run_job(name, context.args)

    command.__doc__ = summary
    app.command(
        name,
        common=(),
        add_help_option=False,  # the job's own help is shown
        context_settings={"ignore_unknown_options": True, "allow_extra_args": True},
    )(command)


for _name, _summary in JOBS.items():
    _register(_name, _summary)


def run_job(name: str, arguments: Sequence[str]) -> None:
    """Run a job in place of this process: signals and exit status are the job's own."""
    if "--help" in arguments or "-h" in arguments:
        shown = subprocess.run(  # noqa: S603  # our own module
            [sys.executable, "-m", "leveret.spark.jobs", name, "--help"],
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        typer.echo(shown.stdout + shown.stderr, nl=False)
        raise typer.Exit(shown.returncode)
    spark = find_spark()
    java = find_java(os.environ)
    command = job_command(spark, name, arguments)
    environment = {"PYSPARK_PYTHON": sys.executable, **os.environ}
    environment.setdefault("JAVA_HOME", str(java.resolve().parent.parent))
    sys.stdout.flush()
    os.execve(command[0], command, environment)  # noqa: S606  # no shell is wanted


def find_spark() -> Path:
    """Return pyspark's directory; an error ends the command."""
    found = find_spec("pyspark")
    if found is None or found.origin is None:
        fail(f"jobs need pyspark, which is not installed: {INSTALL_SPARK}")
    try:
        installed = version("pyspark")
    except PackageNotFoundError:
        installed = ""  # a directory of Spark in PYTHONPATH
    numbers = tuple(int(each) for each in re.findall(r"\d+", installed)[:2])
    if numbers and numbers < SPARK_MIN:
        fail(f"jobs need pyspark 4.2 or later, and {installed} is installed: {INSTALL_SPARK}")
    if find_spec("pyarrow") is None:
        fail(f"jobs need pyarrow, which is not installed: {INSTALL_SPARK}")
    return Path(found.origin).parent


def find_java(environment: os._Environ[str] | dict[str, str]) -> Path:
    """Return the program `java` that Spark will use; an error ends the command."""
    home = environment.get("JAVA_HOME")
    path = str(Path(home, "bin", "java")) if home else "java"
    found = shutil.which(path, path=environment.get("PATH", ""))
    if found is None:
        where = f"JAVA_HOME is '{home}', where no bin/java is" if home else "no java is in PATH"
        fail(f"Spark needs Java, and {where}: {INSTALL_JAVA}")
    try:
        told = subprocess.run(  # noqa: S603  # the user's own Java
            [found, "-version"],
            capture_output=True, text=True, check=False, timeout=JAVA_SECONDS_MAX,
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired) as error:
        fail(f"{found} cannot be run: {error}")
    number = java_version(told.stderr + told.stdout)
    if number is None:
        fail(f"{found} -version tells no version: {INSTALL_JAVA}")
    if number < JAVA_MIN:
        fail(f"Spark needs Java {JAVA_MIN}, and {found} is Java {number}: {INSTALL_JAVA}")
    return Path(found)


def java_version(told: str) -> int | None:
    """Return the number of a Java of which `java -version` tells this, None if it tells none."""
    found = re.search(r'version "(?:1\.)?(\d+)', told)  # Java 8 is 1.8
    return None if found is None else int(found[1])


def job_command(spark: Path, name: str, arguments: Sequence[str]) -> list[str]:
    """Return the command of a job: the interpreter's, or spark-submit's for a cluster."""
    master, settings, rest = _cluster_options(arguments)
    if master is None or re.fullmatch(r"local(\[.*\])?", master):
        return [sys.executable, "-m", "leveret.spark.jobs", name, *arguments]
    command = [str(spark / "bin" / "spark-submit"), "--master", master]
    for setting in settings:
        command += ["--conf", setting]
    return [*command, str(JOBS_FILE), name, *rest]


def _cluster_options(arguments: Sequence[str]) -> tuple[str | None, list[str], list[str]]:
    """Return the master, Spark's settings, and what is left of the arguments."""
    master, settings, rest = None, [], []
    words = iter(arguments)
    for word in words:
        option, has_value, value = word.partition("=")
        if option not in {"--master", "--conf"}:
            rest.append(word)
            continue
        value = value if has_value else next(words, "")
        if option == "--master":
            master = value
        else:
            settings.append(value)
    return master, settings, rest
