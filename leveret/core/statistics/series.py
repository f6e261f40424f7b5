"""Time series of one subject's counters: short steps for minutes, long ones for days.

A sample is taken only if something has changed, so a series has gaps in which the last values
persist. A column is added with its first value; before that, it was 0. Values are in arrays of
eight bytes each, one per column, and one for the times.
"""

from __future__ import annotations

import json
from array import array
from bisect import bisect_right
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

__all__ = [
    "BASIC",
    "DETAILED",
    "GLOBAL",
    "KEPT_STEP_MS_MIN",
    "SampleRetention",
    "Samples",
    "Series",
]


class SampleRetention(NamedTuple):
    """Retention of samples `step_ms` apart for `age_ms`."""

    age_ms: int
    step_ms: int

    @property
    def count_max(self) -> int:
        """Maximum number of samples."""
        return self.age_ms // self.step_ms + 1


HOUR_MS = 3_600_000
WEEK_MS = 7 * 24 * HOUR_MS
# RabbitMQ's (sample_retention_policies), and a week: GLOBAL for the node and virtual hosts, BASIC
# for queues and exchanges, DETAILED for connections and channels.
GLOBAL = (
    SampleRetention(605_000, 5_000),
    SampleRetention(3_660_000, 60_000),
    SampleRetention(29_400_000, 600_000),
    SampleRetention(86_400_000, 1_800_000),
    SampleRetention(WEEK_MS, HOUR_MS),
)
BASIC = (
    SampleRetention(605_000, 5_000),
    SampleRetention(3_600_000, 60_000),
    SampleRetention(WEEK_MS, HOUR_MS),
)
DETAILED = (SampleRetention(605_000, 5_000),)

KEPT_STEP_MS_MIN = 1_800_000  # samples with this step or a longer one survive a restart

COLUMNS_MAX = 64  # when reading stored samples

SERIES_BYTES = 600  # memory of a subject with any samples: objects and their dictionaries
VALUE_BYTES = 40  # memory of one value of the last two samples


class Samples:
    """Samples of one retention, in order of time. Steps begin at multiples of `step_ms`."""

    __slots__ = ("columns", "retention", "times")

    def __init__(self, retention: SampleRetention) -> None:
        self.retention = retention
        self.times = array("Q")
        self.columns: dict[str, array[int]] = {}

    def add(self, time_ms: int, values: Mapping[str, int]) -> None:
        """Add a sample, or replace the one of the same step."""
        step_ms, times = self.retention.step_ms, self.times
        if times and times[-1] // step_ms == time_ms // step_ms:
            times[-1] = max(time_ms, times[-1])
            for name, value in values.items():
                self._column(name)[-1] = value
            return
        if times and time_ms < times[-1]:
            return  # the clock was set back
        times.append(time_ms)
        for name in values:
            self._column(name, missing=1)
        for name, column in self.columns.items():
            column.append(values.get(name, 0))
        self._forget(time_ms - self.retention.age_ms - step_ms)

    def _column(self, name: str, *, missing: int = 0) -> array[int]:
        column = self.columns.get(name)
        if column is None:
            zeros = bytes(8 * (len(self.times) - missing))
            column = self.columns[name] = array("Q", zeros)
        return column

    def _forget(self, before_ms: int) -> None:
        """Drop samples that are too old, except the newest of them, whose values persist."""
        stop = bisect_right(self.times, before_ms) - 1
        stop = max(stop, len(self.times) - self.retention.count_max - 1)
        if stop > 0:
            del self.times[:stop]
            for column in self.columns.values():
                del column[:stop]

    def at(self, time_ms: int, names: Sequence[str]) -> tuple[int, ...]:
        """Return the values at a time; zeros before the first sample."""
        i = bisect_right(self.times, time_ms) - 1
        if i < 0:
            return (0,) * len(names)
        return tuple(self.columns[name][i] if name in self.columns else 0 for name in names)

    @property
    def held_bytes(self) -> int:
        """Memory of the samples, in bytes."""
        return 8 * len(self.times) * (1 + len(self.columns))

    def share_without(self, name: str, tick_ms: int, age_ms: int) -> float:
        """Return the share of the `age_ms` until `tick_ms` in which a value was 0, as far as known.

        A sample stands for the step before it, and for the time until the next one.
        """
        column = self.columns.get(name)
        if column is None:
            return 1.0
        step_ms = self.retention.step_ms
        first_ms = max(tick_ms - age_ms, self.times[0] - step_ms)
        if first_ms >= tick_ms:  # the clock was set back
            return float(not column[-1])
        until_ms, with_ms = tick_ms, 0
        for i in range(len(self.times) - 1, -1, -1):
            since_ms = max(min(self.times[i] - step_ms, tick_ms), first_ms)
            if column[i]:
                with_ms += until_ms - since_ms
            until_ms = since_ms
            if since_ms == first_ms:
                break
        return 1 - with_ms / (tick_ms - first_ms)

    def dump(self) -> bytes:
        """Return the stored form: a line of JSON that describes the data, then the arrays."""
        head = {
            "step_ms": self.retention.step_ms,
            "count": len(self.times),
            "columns": list(self.columns),
        }
        arrays = [self.times, *self.columns.values()]
        return b"".join([json.dumps(head).encode(), b"\n", *(each.tobytes() for each in arrays)])

    def load(self, data: bytes) -> None:
        """Restore samples from `dump`. Raises ValueError, without any change, for invalid data."""
        line, _, rest = data.partition(b"\n")
        head = json.loads(line)
        if not isinstance(head, dict):
            raise ValueError("no description of what follows")  # noqa: TRY004  # of the file
        count, names = head.get("count"), head.get("columns")
        if head.get("step_ms") != self.retention.step_ms:
            raise ValueError("samples of another step")
        if not isinstance(count, int) or not 0 <= count <= self.retention.count_max + 1:
            raise ValueError(f"{count} samples")
        if not isinstance(names, list) or len(names) > COLUMNS_MAX:
            raise ValueError("no list of columns")
        if len(rest) != 8 * count * (1 + len(names)):
            raise ValueError(f"{len(rest)} bytes of {count} samples of {len(names)} columns")
        times, *columns = (
            array("Q", rest[8 * count * i :][: 8 * count]) for i in range(1 + len(names))
        )
        if list(times) != sorted(set(times)):
            raise ValueError("times that do not rise")
        self.times, self.columns = times, dict(zip(map(str, names), columns, strict=True))


class Series:
    """Samples of one subject: the last two, and those of its retentions.

    Its counters start at 0 with each start of the node; `base` are their earlier totals.
    """

    __slots__ = ("base", "before", "last", "last_ms", "retained")

    def __init__(self, retentions: Sequence[SampleRetention] = ()) -> None:
        self.last_ms = 0
        self.last: Mapping[str, int] = {}
        self.before: Mapping[str, int] = {}  # the sample before the last, whenever it was taken
        self.base: Mapping[str, int] = {}
        self.retained = tuple(map(Samples, retentions))

    def add(self, time_ms: int, values: Mapping[str, int]) -> None:
        """Add a sample."""
        self.before, self.last, self.last_ms = self.last, values, time_ms
        if self.retained:
            for name, value in self.base.items():
                values = {**values, name: values.get(name, 0) + value}
            for samples in self.retained:
                samples.add(time_ms, values)

    @property
    def held_bytes(self) -> int:
        """Approximate memory of the samples, in bytes."""
        newest = (len(self.last) + len(self.before)) * VALUE_BYTES
        return SERIES_BYTES + newest + sum(samples.held_bytes for samples in self.retained)

    def rate(self, name: str, tick_ms: int, interval_ms: int) -> float:
        """Return a counter's increase per second in the last interval, which ended at `tick_ms`."""
        if self.last_ms != tick_ms or not interval_ms:
            return 0.0
        return (self.last.get(name, 0) - self.before.get(name, 0)) * 1000 / interval_ms

    def finest(self, age_ms: int) -> Samples | None:
        """Return the samples with the shortest step that cover `age_ms`."""
        for samples in self.retained:
            if samples.retention.age_ms >= age_ms:
                return samples
        return self.retained[-1] if self.retained else None

    @property
    def kept(self) -> tuple[Samples, ...]:
        """Samples that survive a restart."""
        return tuple(
            samples for samples in self.retained if samples.retention.step_ms >= KEPT_STEP_MS_MIN
        )
