"""Replicas of nodes that are stopped, read from their files."""

from __future__ import annotations

from typing import TYPE_CHECKING

from leveret.storage.dump import dump_segment
from leveret.storage.files import RealFileSystem
from leveret.storage.segment import list_segments

if TYPE_CHECKING:
    from pathlib import Path


def read_replica(directory: Path) -> dict[int, bytes]:
    """Return the body of each record in the log below a directory, by offset."""
    files = RealFileSystem()
    records: dict[int, bytes] = {}
    for segment in list_segments(files, directory):
        for entry in dump_segment(files, segment.path):
            assert not entry.damage, f"{segment.path} at {entry.position}: {entry.damage}"
            if not entry.batch.is_control:
                for fields in entry.batch.records():
                    assert fields[0] not in records, f"{segment.path}: {fields[0]} is there twice"
                    records[fields[0]] = fields[-1]
    return records


def differences(nodes: list[Path]) -> list[str]:
    """Return in what the replicas of data directories differ, where they have the same offsets.

    Each of them may have deleted segments that are settled, so no record need be everywhere.
    """
    found: list[str] = []
    logs = sorted({path.relative_to(node) for node in nodes for path in node.glob("topics/*/*/*")})
    for log in logs:
        replicas = {node.name: read_replica(node / log) for node in nodes if (node / log).is_dir()}
        ends = {name: max(records, default=-1) for name, records in replicas.items() if records}
        if len(set(ends.values())) > 1:
            found.append(f"{log} ends at {ends}")
        for offset in sorted(set().union(*replicas.values())):
            bodies = {
                name: records[offset] for name, records in replicas.items() if offset in records
            }
            if len(set(bodies.values())) > 1:
                found.append(f"{log} has other records at {offset}: {bodies}")
                break
    return found
