"""Invariants of a simulated cluster."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from leveret.cluster.partition_state import PartitionState


class Checks:
    """Notes what was seen, and raises AssertionError where that contradicts something earlier."""

    def __init__(self) -> None:
        self.leaders: dict[tuple[int, int], tuple[int, int]] = {}
        self.final: dict[int, list[int]] = {}  # ids below the highest committed offset ever seen
        self.confirmed: dict[int, dict[int, int]] = {}  # by partition: id and its offset

    def led(self, partition: int, epoch: int, leader: tuple[int, int]) -> None:
        """An epoch has one leader, in one session."""
        known = self.leaders.setdefault((partition, epoch), leader)
        assert known == leader, f"epoch {epoch} of {partition} is led by {known} and {leader}"

    def committed(self, partition: int, first: int, ids: Sequence[int]) -> None:
        """Check that committed `ids`, from `first` on, are the same everywhere."""
        final = self.final.setdefault(partition, [])
        known = final[first : first + len(ids)]
        assert known == list(ids[: len(known)]), f"partition {partition} differs from {first} on"
        final.extend(ids[len(known) :])

    def ready(self, partition: int, epoch: int, committed: int) -> None:
        """A leader that delivers has everything that was ever committed."""
        seen = len(self.final.get(partition, []))
        assert committed >= seen or self._is_old(partition, epoch), (
            f"leader of epoch {epoch} of {partition} delivers up to {committed} of {seen}"
        )

    def _is_old(self, partition: int, epoch: int) -> bool:
        return any(known[0] == partition and known[1] > epoch for known in self.leaders)

    def confirm(self, partition: int, messages: Sequence[tuple[int, int]]) -> None:
        """Note messages whose publishers are told that they are safe: (offset, id)."""
        known = self.confirmed.setdefault(partition, {})
        known.update((each, offset) for offset, each in messages)

    def truncated(self, partition: int, committed: int, end: int) -> None:
        """Nothing that is committed is ever cut off."""
        assert end >= committed, f"partition {partition} is cut at {end} below {committed}"

    def end(
        self, states: Mapping[int, PartitionState], logs: Mapping[int, Mapping[int, Sequence[int]]]
    ) -> None:
        """Check that all replicas are the same in the end, and have whatever was confirmed."""
        for partition, state in states.items():
            assert state.leader is not None, f"partition {partition} has no leader in the end"
            assert state.in_sync_nodes == set(state.replicas), (
                f"{partition} is not in sync: {state}"
            )
            first, *others = logs[partition].values()
            assert all(each == first for each in others), f"replicas of {partition} differ"
            for each, offset in self.confirmed.get(partition, {}).items():
                assert first[offset : offset + 1] == [each], f"confirmed message {each} is lost"
