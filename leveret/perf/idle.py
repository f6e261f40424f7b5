"""Idle connections, to measure what each of them costs the broker."""

from __future__ import annotations

import resource
import time
from typing import TYPE_CHECKING

from leveret.perf.plan import PlanError
from leveret.perf.process import usage
from leveret.perf.result import Result
from leveret.perf.session import open_sessions

if TYPE_CHECKING:
    from collections.abc import Sequence

    from leveret.perf.plan import LoadPlan
    from leveret.perf.session import LoadSession

__all__ = ["hold_connections"]

FILES_BESIDE_CONNECTIONS = 64  # standard streams, modules, the sockets of name look-ups


def hold_connections(plan: LoadPlan, pids: Sequence[int]) -> Result:
    """Open the plan's connections with a channel each, hold them, close them."""
    _allow_files(plan.connections + FILES_BESIDE_CONNECTIONS)
    before = usage(*pids) if pids else None
    start = time.monotonic()
    sessions: list[LoadSession] = []
    try:
        for group in open_sessions(plan.address, plan.connections):
            sessions += group
        connect_seconds = time.monotonic() - start
        time.sleep(plan.duration)
        after = usage(*pids) if pids else None
    finally:
        for session in sessions:
            session.socket.close()
    return Result(
        seconds=time.monotonic() - start,
        connections=len(sessions),
        connect_seconds=connect_seconds,
        broker_resident_bytes_before=before.resident_bytes if before else None,
        broker_resident_bytes_peak=after.resident_bytes if after else None,
        broker_resident_bytes_after=after.resident_bytes if after else None,
    )


def _allow_files(wanted: int) -> None:
    """Raise this process's limit of open files, as far as the system allows."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft >= wanted:
        return
    if hard not in (resource.RLIM_INFINITY,) and hard < wanted:
        raise PlanError(f"{wanted} open files are needed, the system allows {hard}")
    resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
