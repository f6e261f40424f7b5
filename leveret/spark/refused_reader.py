"""Stream whose options are wrong: it fails with the reason when Spark asks for its first offset.

PySpark stops a stream's reader in any case, also one that it could not make: an error that is
raised where readers are made ends in an UnboundLocalError of PySpark's own, which hides it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NoReturn

from pyspark.sql.datasource import DataSourceStreamReader
from pyspark.sql.streaming.datasource import SupportsTriggerAvailableNow

if TYPE_CHECKING:
    from pyspark.sql.datasource import InputPartition
    from pyspark.sql.streaming.datasource import ReadLimit

__all__ = ["RefusedStreamReader"]


class RefusedStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Raises `error` whatever it is asked for (see pyspark)."""

    def __init__(self, error: Exception) -> None:
        self._error = error

    def getDefaultReadLimit(self) -> NoReturn:  # noqa: N802
        """Raise the error."""
        raise self._error

    def initialOffset(self) -> NoReturn:  # noqa: N802
        """Raise the error."""
        raise self._error

    def prepareForTriggerAvailableNow(self) -> NoReturn:  # noqa: N802
        """Raise the error."""
        raise self._error

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> NoReturn:  # noqa: N802, ARG002
        """Raise the error."""
        raise self._error

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> NoReturn:  # noqa: ARG002
        """Raise the error."""
        raise self._error

    def read(self, partition: InputPartition) -> NoReturn:  # noqa: ARG002
        """Raise the error."""
        raise self._error
