"""Parts of jobs: what a job says of itself, and what it is run with."""

from __future__ import annotations

import os
import sys
import time
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from leveret.spark.connection_options import read_connection
from leveret.spark.option_reader import OptionReader

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable

    from pyspark.sql import SparkSession

    from leveret.spark.connection_options import ConnectionOptions
    from leveret.spark.servers import BrokerServers

__all__ = ["JobContext", "JobError", "JobSummary", "SparkJob"]

# Named values: numbers, texts, lists of rows. A job that has found what it should not, such as
# differences, says `"ok": False`: the exit status is 1 then.
JobSummary: TypeAlias = dict[str, Any]

LOCAL_MASTER: Final = "local[*]"
PROGRESS_S: Final = 2.0  # between two lines of progress
# Spark's own defaults suit a service that is watched in a browser; a job is a command.
QUIET: Final = {"spark.ui.enabled": "false", "spark.ui.showConsoleProgress": "false"}
ALWAYS: Final = {
    "spark.sql.session.timeZone": "UTC",  # dates and hours are the same everywhere
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",  # INT96 is Spark's own
    # Rows of several dates in one task are written as they come, and not sorted: their order is
    # that of the log in each file.
    "spark.sql.maxConcurrentOutputFileWriters": "1000",
}
LOG_SETTINGS: Final = "log4j2.properties"


class JobError(Exception):
    """A job cannot be done; its text says why, and what to do."""


@dataclass(frozen=True, slots=True)
class SparkJob:
    """A job: its summary for `--help`, its arguments, and what it does.

    `run` returns the summary of what was done. It raises JobError and SourceError
    (leveret.spark.errors) for what went wrong, OptionError (option_reader) for wrong arguments.
    """

    summary: str
    add_arguments: Callable[[argparse.ArgumentParser], None]
    run: Callable[[JobContext], JobSummary]


class JobContext:
    """Arguments of a job, the broker, and a Spark session that is begun when it is asked for."""

    def __init__(self, name: str, arguments: argparse.Namespace) -> None:
        """Check the common arguments. Raises OptionError."""
        self.name = name
        self.arguments = arguments
        self.connection: ConnectionOptions = read_connection(OptionReader(self.source_options()))
        self._reported_s = 0.0
        self._spark: SparkSession | None = None

    def source_options(self) -> dict[str, str]:
        """Return the options of the data source that say how the broker is reached."""
        given = self.arguments
        options = {
            "servers": given.servers,
            "user": given.user,
            "passwordFile": given.password_file,
            "password": None if given.password_file else os.environ.get("LEVERET_PASSWORD"),
            "vhost": given.vhost,
            "tlsCaFile": given.tls_ca_file,
            "tlsCertFile": given.tls_cert_file,
            "tlsKeyFile": given.tls_key_file,
            "retryTimeout": given.retry_timeout,
        }
        return {name: value for name, value in options.items() if value is not None}

    @cached_property
    def broker(self) -> BrokerServers:
        """Connection to the broker, on the driver."""
        from leveret.spark.servers import servers_of  # noqa: PLC0415

        return servers_of(self.connection)

    @property
    def spark(self) -> SparkSession:
        """The Spark session, with the data source `leveret`. The first use takes some seconds."""
        if self._spark is None:
            self.report("starting Spark", always=True)
            self._spark = _session(self.name, self.arguments)
        return self._spark

    def report(self, text: str, *, always: bool = False) -> None:
        """Print a line of progress on standard error, unless the last one was just now."""
        now = time.monotonic()
        if always or now - self._reported_s >= PROGRESS_S:
            self._reported_s = now
            print(f"leveret: {text}", file=sys.stderr, flush=True)

    def close(self) -> None:
        """End the Spark session, if there is one."""
        if self._spark is not None:
            self._spark.stop()
            self._spark = None


def _session(name: str, arguments: argparse.Namespace) -> SparkSession:
    """Return a session. A setting that was given goes before the ones that suit jobs."""
    from pyspark.errors import PySparkRuntimeError  # noqa: PLC0415
    from pyspark.sql import SparkSession  # noqa: PLC0415

    from leveret.spark.source import LeveretDataSource  # noqa: PLC0415

    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    is_submitted = "PYSPARK_GATEWAY_PORT" in os.environ  # spark-submit has its own --master
    builder = SparkSession.builder.appName(f"leveret {name}")
    master = arguments.master or (None if is_submitted else LOCAL_MASTER)
    if master is not None:
        builder = builder.master(master)
    settings = dict(ALWAYS)
    if not is_submitted:
        settings |= QUIET
        settings["spark.driver.extraJavaOptions"] = f"-Dlog4j2.configurationFile={_log_settings()}"
        if master is not None and master.startswith("local"):
            settings |= dict.fromkeys(
                ("spark.driver.host", "spark.driver.bindAddress"), "127.0.0.1"
            )
    settings |= dict(each.split("=", 1) for each in arguments.conf)
    for key, value in settings.items():
        builder = builder.config(key, value)
    try:
        session = builder.getOrCreate()
    except PySparkRuntimeError as error:
        if error.getCondition() != "JAVA_GATEWAY_EXITED":
            raise
        raise JobError(
            "Spark has not started; what it says is above. It needs Java 17 or later, in JAVA_HOME "
            "or in the PATH"
        ) from error
    session.dataSource.register(LeveretDataSource)
    return session


def _log_settings() -> str:
    """Return the address of the settings by which Spark logs errors only, to standard error."""
    from pathlib import Path  # noqa: PLC0415

    return Path(__file__).with_name(LOG_SETTINGS).as_uri()
