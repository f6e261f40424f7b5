"""Checks of the caches of the logs in the state store: `leveret doctor --deep`.

De-duplication windows, due times and schedule ids are rebuilt from the logs without it; as long as
it is there it is believed. For a stopped node, whose state store could be read.
"""

from __future__ import annotations

import os
from shlex import quote
from typing import TYPE_CHECKING, NamedTuple

from leveret.core.settings.partitioning import layout_of
from leveret.features.celery.eta_hold import eta_topic
from leveret.features.dedup.exchange_log import SEEN_TOPIC, exchanges_window_id
from leveret.features.dedup.extension import queue_window_id
from leveret.features.dedup.window import window_prefix, window_problem
from leveret.features.delay.delayed_messages import DELAYED_TOPIC
from leveret.features.delay.due_index import PREFIX, index_problem, store_identity
from leveret.features.delay.schedule_ids import ids_prefix, ids_problem
from leveret.features.retry.retrying import retry_topic
from leveret.ports.check_results import CheckResult, Severity
from leveret.ports.ranges import RangeSet
from leveret.storage.files import RehearsalFiles
from leveret.storage.marks import LogMarks, boot_id
from leveret.storage.names import log_key
from leveret.storage.recovery import recover
from leveret.storage.state import MemoryStateStore, open_read_only

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from pathlib import Path

    from leveret.ports.definitions import Definitions

    Problem = Callable[["Iterator[tuple[bytes, bytes]]", int, RangeSet], "str | None"]

__all__ = ["check_caches"]


class Cache(NamedTuple):
    """Entries of the state store about one log, whose keys begin with `prefix`."""

    name: str
    log: Path
    prefix: bytes
    problem: Problem


def check_caches(
    data_dir: Path, definitions: Definitions, about_logs: Mapping[bytes, bytes]
) -> Iterator[CheckResult]:
    """Compare all caches with their logs; `about_logs` are the entries of `check_state`."""
    path = data_dir / "state.lmdb"
    if not path.exists():
        return
    state = MemoryStateStore()
    state.write(list(about_logs.items()), durable=True)
    marks = LogMarks(state, boot_id())
    with open_read_only(path) as entries:
        for cache in _caches(data_dir / "topics", definitions):
            if next(entries(cache.prefix), None) is None:
                continue
            key = os.fsencode(cache.log.relative_to(cache.log.parents[2]))
            log = recover(RehearsalFiles(), cache.log, marks.known(key))
            problem = cache.problem(entries(cache.prefix), log.end, log.settled)
            if problem is not None:
                yield _mismatch(path, cache, problem)


def _caches(topics: Path, definitions: Definitions) -> Iterator[Cache]:
    for vhost in definitions.vhosts:
        name, incarnation = vhost.name, vhost.incarnation
        yield _due_times(topics, name, DELAYED_TOPIC, incarnation)
        delayed = topics / log_key(name, DELAYED_TOPIC, incarnation, 0)
        yield Cache("the schedule ids", delayed, ids_prefix(name, incarnation), _ids_problem)
        yield _window(topics, name, SEEN_TOPIC, incarnation, exchanges_window_id(name, incarnation))
    for queue in definitions.queues:
        incarnation = queue.incarnation
        for number in layout_of(queue).present:
            for topic in (retry_topic(queue.topic, number), eta_topic(queue.topic, number)):
                yield _due_times(topics, queue.vhost, topic, incarnation)
            window_id = queue_window_id(incarnation, number)
            yield _window(topics, queue.vhost, queue.topic, incarnation, window_id, number)


def _due_times(topics: Path, vhost: str, topic: str, incarnation: str) -> Cache:
    log = topics / log_key(vhost, topic, incarnation, 0)
    prefix = PREFIX + store_identity(vhost, topic, incarnation)
    return Cache("the index of due times", log, prefix, index_problem)


def _window(  # a log's place, and a window's
    topics: Path, vhost: str, topic: str, incarnation: str, window_id: bytes, number: int = 0
) -> Cache:
    log = topics / log_key(vhost, topic, incarnation, number)
    prefix = window_prefix(window_id)
    return Cache(
        "the de-duplication window",
        log,
        prefix,
        lambda entries, end, _: window_problem(entries, prefix, end),
    )


def _ids_problem(
    entries: Iterator[tuple[bytes, bytes]], end: int, _settled: RangeSet
) -> str | None:
    return ids_problem(entries, end)


def _mismatch(path: Path, cache: Cache, problem: str) -> CheckResult:
    return CheckResult(
        "state.cache",
        Severity.WARNING,
        str(cache.log),
        f"{cache.name} in {path.name} {problem}",
        "messages may be delivered too late, or stored twice: the node believes it",
        f"move it away while the node is stopped: `mv {quote(str(path))} {quote(str(path))}.old`; "
        "the next start makes it anew from the logs, which takes longer",
    )
