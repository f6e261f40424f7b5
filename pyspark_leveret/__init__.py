"""Found by Spark on the driver by its name: makes the format `leveret` known to every session."""

from leveret.spark.source import LeveretDataSource as DefaultSource

__all__ = ["DefaultSource"]
