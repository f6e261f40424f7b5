"""Runner of jobs: reads the arguments, runs the job, and prints its summary.

Exit status: 0, 1 for a job that failed or has found differences, 2 for wrong arguments. SIGINT and
SIGTERM end a job with 130 and 143; running it again goes on where it was.
"""

from __future__ import annotations

import argparse
import json
import re
import signal
import sys
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final, NoReturn, TextIO

from leveret.spark.errors import SourceError
from leveret.spark.jobs.job import JobContext, JobError
from leveret.spark.option_reader import OptionError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from leveret.spark.jobs.job import JobSummary, SparkJob

__all__ = ["JOBS", "main"]

# In the order of the documents. Each is the name of a module of leveret.spark.jobs.
JOBS: Final = ("archive", "verify", "replay", "export", "usage", "dlq")
DONE, FAILED, REFUSED = 0, 1, 2
# How the errors of the data source stand in the traceback of a worker that Spark shows.
OWN_ERROR: Final = re.compile(r"^leveret\.spark(?:\.\w+)+Error: (.+)$", re.MULTILINE)


def main(arguments: Sequence[str], output: TextIO) -> int:
    """Run a job by its arguments, and print its summary to `output`. Returns the exit status."""
    try:
        parser = _parser()
        name, given = _parsed(parser, arguments)
    except SystemExit as end:  # argparse has said what is wrong, or has shown the help
        return int(end.code or 0)
    signal.signal(signal.SIGTERM, _end)
    try:
        return _run(name, given, output)
    except KeyboardInterrupt:
        return 128 + signal.SIGINT
    except SystemExit as end:
        return int(end.code or 0)


def job_of(name: str) -> SparkJob:
    """Return a job by its name."""
    found: SparkJob = import_module(f"leveret.spark.jobs.{name}").JOB
    return found


def _end(number: int, _: object) -> NoReturn:
    raise SystemExit(128 + number)


class OneLineParser(argparse.ArgumentParser):
    """Parser that says in one line what is wrong."""

    def error(self, message: str) -> NoReturn:
        """End with status 2 and a line on standard error."""
        self.exit(REFUSED, f"{self.prog}: {message}\n")


def _parser() -> OneLineParser:
    parser = OneLineParser(
        prog="leveret spark", description="Jobs for Spark. Each has its own --help."
    )
    jobs = parser.add_subparsers(dest="job", metavar="JOB", required=True)
    common = common_arguments()
    for name in JOBS:
        job = job_of(name)
        job.add_arguments(
            jobs.add_parser(name, help=job.summary, description=job.summary, parents=[common])
        )
    return parser


def common_arguments() -> OneLineParser:
    """Return a parser with the arguments that all jobs have."""
    parser = OneLineParser(add_help=False)
    broker = parser.add_argument_group("the broker")
    broker.add_argument(
        *("--servers",), default="localhost:15672", metavar="HOST:PORT,…",
        help="management ports, or URLs, of the broker  [default: %(default)s]",
    )  # fmt: skip
    broker.add_argument("--user", default="guest", help="[default: %(default)s]")
    broker.add_argument(
        *("--password-file",), metavar="PATH",
        help="file with the password; else it is in LEVERET_PASSWORD",
    )  # fmt: skip
    broker.add_argument("--vhost", default="/", help="virtual host  [default: %(default)s]")
    for option, what in (("ca", "authorities"), ("cert", "certificate"), ("key", "private key")):
        broker.add_argument(f"--tls-{option}-file", metavar="PATH", help=f"PEM file, {what}")
    broker.add_argument(
        *("--retry-timeout",), default="120s", metavar="TIME",
        help="for how long a request is tried again  [default: %(default)s]",
    )  # fmt: skip
    spark = parser.add_argument_group("Spark")
    spark.add_argument("--master", metavar="URL", help="of the cluster  [default: local[*]]")
    spark.add_argument(
        *("--conf",), action="append", default=[], type=_setting, metavar="NAME=VALUE",
        help="setting of Spark; may be repeated",
    )  # fmt: skip
    parser.add_argument("--json", action="store_true", help="print the summary as JSON")
    return parser


def _setting(text: str) -> str:
    if not re.fullmatch(r"[\w.-]+=.*", text):
        raise argparse.ArgumentTypeError(f"'{text}' is not NAME=VALUE")
    return text


def _parsed(
    parser: argparse.ArgumentParser, arguments: Sequence[str]
) -> tuple[str, argparse.Namespace]:
    given = parser.parse_args(arguments)
    return given.job, given


def _run(name: str, given: argparse.Namespace, output: TextIO) -> int:
    try:
        context = JobContext(name, given)
    except OptionError as error:
        return _failed(name, str(error), REFUSED)
    try:
        summary = job_of(name).run(context)
        _show(summary, output, as_json=given.json)
        return DONE if summary.get("ok", True) else FAILED
    except OptionError as error:
        return _failed(name, str(error), REFUSED)
    except (JobError, SourceError) as error:
        return _failed(name, str(error))
    except ImportError as error:
        return _failed(name, f"{error}: pip install 'leveret[spark]' installs what jobs need")
    except Exception as error:
        text = _of_spark(error)
        if text is None:
            raise  # a fault of ours: with its traceback
        return _failed(name, text)
    finally:
        context.close()


def _failed(name: str, text: str, status: int = FAILED) -> int:
    print(f"leveret spark {name}: {text}", file=sys.stderr)
    return status


def _of_spark(error: Exception) -> str | None:
    """Return the line that says what an error of Spark is about, None for other errors.

    What the data source has raised in a worker comes with the tracebacks of two languages.
    """
    if not type(error).__module__.startswith(("pyspark.", "py4j.")):
        return None
    text = str(error)
    own = OWN_ERROR.findall(text)
    return own[-1] if own else text.strip().split("\n", 1)[0]


def _show(summary: JobSummary, output: TextIO, *, as_json: bool) -> None:
    text = json.dumps(summary, ensure_ascii=False) if as_json else "\n".join(_lines(summary))
    output.write(text + "\n")
    output.flush()


def _lines(summary: JobSummary) -> list[str]:
    """Return a summary for people: a line for each value, and for each row of a list."""
    lines = []
    for name, value in summary.items():
        label = name.replace("_", " ")
        if isinstance(value, list):
            lines.append(f"{label}: {len(value) or 'none'}")
            lines += [f"  {_row(each)}" for each in value]
        else:
            lines.append(f"{label}: {_row(value)}")
    return lines


def _row(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{name} {_row(each)}" for name, each in value.items())
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:,}" if isinstance(value, int) else str(value)
