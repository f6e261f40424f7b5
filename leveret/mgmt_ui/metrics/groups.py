"""Groups of metrics: values of all objects of one kind, one by one or as sums.

A node may hold a hundred thousand queues while its one event loop serves clients. So objects are
processed in slices, and the lines of a slice are sent before the next is read: a whole family is
never in memory as text, let alone a whole answer.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from leveret.mgmt_ui.metrics.exposition import Exposition, MetricFamily, MetricType, labels_text
from leveret.mgmt_ui.yielding import in_yielding_chunks

if TYPE_CHECKING:
    from leveret.mgmt_ui.metrics.reading import Reading
    from leveret.ports.counters import Histogram

__all__ = [
    "HistogramFamily",
    "MetricColumn",
    "MetricGroup",
    "counter",
    "gauge",
    "moment",
    "one_by_one",
    "summed",
    "untyped",
]

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class MetricColumn(Generic[T]):
    """One value of an object, None if it has none; the family's name is without prefix."""

    family: MetricFamily
    value: Callable[[T], float | None]
    is_summed: bool = True  # whether the sum over objects means anything


def counter(name: str, explanation: str, value: Callable[[T], float]) -> MetricColumn[T]:
    """Return a column of a counter, which only a restart resets."""
    return MetricColumn(MetricFamily(f"{name}_total", MetricType.COUNTER, explanation), value)


def gauge(name: str, explanation: str, value: Callable[[T], float]) -> MetricColumn[T]:
    """Return a column of a gauge."""
    return MetricColumn(MetricFamily(name, MetricType.GAUGE, explanation), value)


def moment(name: str, explanation: str, value: Callable[[T], float | None]) -> MetricColumn[T]:
    """Return a column of a time, None if there is none."""
    return MetricColumn(MetricFamily(name, MetricType.GAUGE, explanation), value, is_summed=False)


def untyped(name: str, explanation: str) -> MetricColumn[Any]:
    """Return a column of constant 1, whose labels hold the information."""
    return MetricColumn(MetricFamily(name, MetricType.UNTYPED, explanation), lambda _: 1)


@dataclass(frozen=True, slots=True)
class HistogramFamily:
    """Histogram of the whole node; the family's name has its prefix.

    `units` of the observed value are one of the exported one: 1000 to turn milliseconds into
    seconds.
    """

    family: MetricFamily
    read: Callable[[Reading], Histogram | None]
    labels: Mapping[str, str] = field(default_factory=dict)
    units: int = 1

    def tell(self, reading: Reading, exposition: Exposition) -> str:
        """Return the histogram's lines; empty if it is not measured."""
        read = self.read(reading)
        if read is None:
            return ""
        bounds = [bound if self.units == 1 else bound / self.units for bound in read.bounds]
        total = read.sum if self.units == 1 else read.sum / self.units
        return exposition.head(self.family) + exposition.histogram(
            self.family, bounds, read.counts, total, self.labels
        )


def _no_labels(_: object) -> Mapping[str, str]:
    return {}


@dataclass(frozen=True, slots=True)
class MetricGroup(Generic[T]):
    """Metrics of one kind of object; `name` selects them at `/metrics/detailed`.

    `totals` replace the sums over existing objects where these would be wrong: counters of objects
    that come and go must not fall when one goes. A group that is `always_labelled` has few objects,
    and is never summed.
    """

    name: str
    objects: Callable[[Reading], Iterable[T]]
    columns: tuple[MetricColumn[T], ...]
    labels: Callable[[T], Mapping[str, str]] = _no_labels
    totals: tuple[MetricColumn[Reading], ...] | None = None
    always_labelled: bool = False
    only_summed: bool = False  # not worth a series each
    only_named: bool = False  # one by one only if its family is named
    prefix: str = "rabbitmq_"


async def summed(
    group: MetricGroup[T], reading: Reading, exposition: Exposition
) -> AsyncIterator[str]:
    """Yield the sums over all objects."""
    if group.totals is not None:
        for told in group.totals:
            yield _whole(group, told.family, told.value(reading) or 0, exposition)
        return
    columns = [column for column in group.columns if column.is_summed]
    sums: list[float] = [0] * len(columns)
    async for part in in_yielding_chunks(group.objects(reading)):
        for at, column in enumerate(columns):
            sums[at] += sum(value for value in map(column.value, part) if value)
    for column, total in zip(columns, sums, strict=True):
        yield _whole(group, column.family, total, exposition)


def _whole(
    group: MetricGroup[Any], family: MetricFamily, value: float, exposition: Exposition
) -> str:
    family = _named(family, group.prefix)
    return exposition.head(family) + exposition.samples(family, [("", value)])


def samples_of(group: MetricGroup[T], items: Sequence[T], exposition: Exposition) -> Iterator[str]:
    """Yield the values of a few objects, family by family as the formats demand."""
    labels = [labels_text(group.labels(item)) for item in items]
    for column in group.columns:
        family = _named(column.family, group.prefix)
        values = [column.value(item) for item in items]
        known = [
            (text, each) for text, each in zip(labels, values, strict=True) if each is not None
        ]
        yield exposition.head(family) + exposition.samples(family, known)


async def one_by_one(
    group: MetricGroup[T], reading: Reading, exposition: Exposition, prefix: str
) -> AsyncIterator[str]:
    """Yield the values of each object, family by family as the formats demand."""
    if group.only_summed:
        async for piece in summed(group, reading, exposition):
            yield piece
        return
    # Two lists, not one of pairs: the garbage collector would stop the loop to look at them all.
    items: list[T] = []
    labels: list[str] = []
    async for part in in_yielding_chunks(group.objects(reading)):
        items += part
        labels += [labels_text(group.labels(item)) for item in part]
    for column in group.columns:
        family, value = _named(column.family, prefix), column.value
        yield exposition.head(family)
        async for some in in_yielding_chunks(zip(labels, items, strict=True)):
            values = [(text, value(item)) for text, item in some]
            known = [(text, each) for text, each in values if each is not None]
            yield exposition.samples(family, known)


def _named(family: MetricFamily, prefix: str) -> MetricFamily:
    return replace(family, name=prefix + family.name)
