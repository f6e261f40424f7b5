"""Java options with which the tests' JVMs start in less than half of the time.

Tests start and kill dozens of them. A third of a start is reading and checking Spark's classes, and
a quarter is optimizing code that runs for seconds. So classes come from an archive, made once for
each Spark in the virtual environment, and there is no second compiler.

    python -m spark_tests.quick_java     starts a session, whose classes are what the archive has
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Final

import pyspark

from spark_tests.session import spark_session

# What it has to say of classes that cannot be in an archive is of no use, and goes to the output.
QUICK: Final = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -Xlog:disable"
# Options of the JVM of a driver, which no other Java program hears of.
VARIABLE: Final = "SPARK_SUBMIT_OPTS"


def start_quickly() -> None:
    """Have all sessions that this process and its children begin start quickly."""
    archive = Path(sys.prefix) / f"spark-{pyspark.__version__}.jsa"
    if not archive.exists():
        _make(archive)
    found = f" -XX:SharedArchiveFile={archive}" if archive.exists() else ""
    os.environ[VARIABLE] = QUICK + found


def _make(archive: Path) -> None:
    """Make the archive; where that fails there is none, and tests tell what is wrong."""
    made = archive.with_suffix(f".{os.getpid()}")
    environment = {**os.environ, VARIABLE: f"{QUICK} -XX:ArchiveClassesAtExit={made}"}
    command = [sys.executable, "-m", "spark_tests.quick_java"]
    with suppress(subprocess.SubprocessError):
        subprocess.run(command, env=environment, check=False, capture_output=True, timeout=300)
    if made.exists():
        made.rename(archive)


def main() -> None:
    """Use a session a little, and end it."""
    with tempfile.TemporaryDirectory() as directory:
        session = spark_session(Path(directory))
        session.range(1000).selectExpr("sum(id)").collect()
        session.range(10).write.parquet(f"{directory}/table")
        session.stop()


if __name__ == "__main__":
    main()
