"""Spark sessions as tests use them: local, small, without a UI."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import SparkSession

from leveret.spark.source import LeveretDataSource

if TYPE_CHECKING:
    from pathlib import Path


def spark_session(directory: Path, cores: int = 2) -> SparkSession:
    """Return a session with the data source."""
    session = (
        SparkSession.builder.master(f"local[{cores}]")
        .config("spark.ui.enabled", "false")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.sql.warehouse.dir", str(directory / "warehouse"))
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.host", "127.0.0.1")
        .getOrCreate()
    )
    session.sparkContext.setLogLevel("ERROR")
    session.dataSource.register(LeveretDataSource)
    return session
