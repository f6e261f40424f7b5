r"""Persistence of the samples with long steps across restarts.

They are written seldom, in one transaction of the state store, and only if they have changed: a
crash loses the last half hour of a chart. Unreadable samples are dropped.

    key     statistics\0node\0STEP, statistics\0vhost\0VHOST\0STEP or
            statistics\0queue\0VHOST\0QUEUE\0STEP; the step in milliseconds, in decimal
    value   Samples.dump
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from leveret.core.statistics.series import BASIC, GLOBAL, Series

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from leveret.core.statistics.series import SampleRetention, Samples
    from leveret.core.statistics.statistics import Statistics
    from leveret.core.vhost import Vhost
    from leveret.ports import StateStore
    from leveret.ports.counters import Counters

__all__ = ["SamplesKeeper"]

PREFIX = b"statistics\0"


class SamplesKeeper:
    """Writes a broker's long series to its state store, and restores them at a start.

    Unreadable samples are reported with `warn(text)`.
    """

    def __init__(
        self,
        statistics: Statistics,
        vhosts: Mapping[str, Vhost],
        state: StateStore,
        warn: Callable[[str], None],
    ) -> None:
        self._statistics = statistics
        self._vhosts = vhosts
        self._state = state
        self._warn = warn
        self._written: dict[bytes, int] = {}  # time of the last sample in the store, by key

    def restore(self) -> None:
        """Restore the samples of an earlier run. Called once, before sampling begins."""
        subjects = {key: (counters, kind) for key, counters, kind in self._subjects()}
        for key, value in self._state.scan(PREFIX):
            subject, _, step = key.rpartition(b"\0")
            found = subjects.get(subject)
            if found is None:
                self._written[key] = 0  # deleted: the next write removes it
                continue
            counters, retentions = found
            if counters.series is None:
                counters.series = Series(retentions)
            self._load(counters.series, key, step, value)
        for counters, _ in subjects.values():
            _go_on_from_kept(counters.series)

    def _load(self, series: Series, key: bytes, step: bytes, value: bytes) -> None:
        for samples in series.kept:
            if str(samples.retention.step_ms).encode() == step:
                try:
                    samples.load(value)
                except ValueError as error:
                    self._warn(f"samples of {key!r} cannot be read and start empty: {error}")
                self._written[key] = samples.times[-1] if samples.times else 0

    async def keep(self) -> None:
        """Write changed samples. Raises StorageError."""
        changes: list[tuple[bytes, bytes | None]] = []
        last: dict[bytes, int] = {}
        gone = set(self._written)
        for key, samples in self._kept():
            gone.discard(key)
            if samples.times and samples.times[-1] != self._written.get(key):
                changes.append((key, samples.dump()))
                last[key] = samples.times[-1]
        changes += [(key, None) for key in gone]
        if changes:
            await self._state.write_behind(changes)
            self._written.update(last)
            for key in gone:
                del self._written[key]

    def _kept(self) -> Iterator[tuple[bytes, Samples]]:
        for subject, counters, _ in self._subjects(sampled=True):
            series: Series | None = counters.series
            for samples in () if series is None else series.kept:
                yield subject + b"\0%d" % samples.retention.step_ms, samples

    def _subjects(
        self, *, sampled: bool = False
    ) -> Iterator[tuple[bytes, Counters, tuple[SampleRetention, ...]]]:
        """Yield (key prefix, counters, retentions) of all subjects with persistent series.

        With `sampled`, of those queues only that have one.
        """
        yield _key("node"), self._statistics.node_counters, GLOBAL
        for vhost in self._vhosts.values():
            yield _key("vhost", vhost.name), vhost.counters, GLOBAL
            for queue in vhost.queues.values():
                if queue.owner is None and not (sampled and queue.counters.series is None):
                    yield _key("queue", vhost.name, queue.definition.name), queue.counters, BASIC


def _key(*names: str) -> bytes:
    return PREFIX + b"\0".join(name.encode() for name in names)


def _go_on_from_kept(series: Series | None) -> None:
    """Continue the counters of an earlier run from their last samples."""
    if series is None:
        return
    newest = max(
        (samples for samples in series.kept if samples.times),
        key=lambda samples: samples.times[-1],
        default=None,
    )
    if newest is not None:
        gauges = ("messages", "messages_ready", "messages_unacknowledged")
        columns = newest.columns.items()
        series.base = {name: column[-1] for name, column in columns if name not in gauges}
