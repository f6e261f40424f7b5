"""Group coordinator without I/O: decides which member of a group gets which partitions.

Each partition belongs to one member at a time. The shell tells the coordinator who joins and leaves
and which partitions there are, and carries out what is decided: it delivers a partition to the
member it is assigned to, and stops when it is revoked. A revoked partition stays its old owner's
until the shell says that it is released: only then does somebody else get it.

Members share the partitions evenly: nobody has two more than another. A rebalance moves as few of
them as that allows. A member that asks for certain partitions gets these and no others, as long as
no earlier member asks for them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, NamedTuple, TypeVar

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

__all__ = ["Assign", "GroupCoordinator", "Revoke"]

M = TypeVar("M")


class Assign(NamedTuple, Generic[M]):
    """Deliver a partition to a member from now on; a revoked one that it still has, too."""

    partition: int
    member: M


class Revoke(NamedTuple, Generic[M]):
    """Deliver a partition to its member no more; call `released` when nothing is unsettled."""

    partition: int
    member: M


@dataclass(slots=True)
class _Ownership(Generic[M]):
    member: M
    is_revoked: bool = False


class GroupCoordinator(Generic[M]):
    """Members of one group and their partitions. Members are compared by identity or equality."""

    def __init__(self, partitions: Iterable[int]) -> None:
        self._partitions = sorted(partitions)
        # In the order in which they have joined; what each asks for, None: its share.
        self._members: dict[M, frozenset[int] | None] = {}
        self._suspended: set[M] = set()
        self._owned: dict[int, _Ownership[M]] = {}

    # -- commands; each returns what the shell has to do

    def join(self, member: M, wanted: Collection[int] | None = None) -> list[Assign[M] | Revoke[M]]:
        """Add a member, which may want certain partitions and no others."""
        self._members[member] = None if wanted is None else frozenset(wanted)
        return self._rebalance()

    def leave(self, member: M) -> list[Assign[M] | Revoke[M]]:
        """Remove a member. Its partitions are revoked, if it has any."""
        self._members.pop(member, None)
        self._suspended.discard(member)
        return self._rebalance()

    def suspend(self, member: M) -> list[Assign[M] | Revoke[M]]:
        """Assign no partitions to a member that does not keep up, until it resumes."""
        if member in self._members:
            self._suspended.add(member)
        return self._rebalance()

    def resume(self, member: M) -> list[Assign[M] | Revoke[M]]:
        """Assign partitions to a suspended member again."""
        self._suspended.discard(member)
        return self._rebalance()

    def released(self, partition: int) -> list[Assign[M] | Revoke[M]]:
        """Note that the owner of a revoked partition holds nothing of it any more."""
        owned = self._owned.get(partition)
        if owned is not None and owned.is_revoked:
            del self._owned[partition]
        return self._rebalance()

    def set_partitions(self, partitions: Iterable[int]) -> list[Assign[M] | Revoke[M]]:
        """Replace the list of partitions; those that are gone are revoked."""
        self._partitions = sorted(partitions)
        return self._rebalance()

    # -- what is decided

    @property
    def members(self) -> list[M]:
        """Members in the order in which they have joined."""
        return list(self._members)

    def owner(self, partition: int) -> M | None:
        """Return the member that a partition belongs to, even if it was revoked, or None."""
        owned = self._owned.get(partition)
        return None if owned is None else owned.member

    def is_suspended(self, member: M) -> bool:
        """Whether a member gets no partitions until it resumes."""
        return member in self._suspended

    def is_revoked(self, partition: int) -> bool:
        """Whether a partition still belongs to a member that shall have it no longer."""
        owned = self._owned.get(partition)
        return owned is not None and owned.is_revoked

    def partitions_of(self, member: M) -> list[int]:
        """Return the partitions that are delivered to a member."""
        return [
            number
            for number, owned in sorted(self._owned.items())
            if owned.member == member and not owned.is_revoked
        ]

    # -- inside

    def _rebalance(self) -> list[Assign[M] | Revoke[M]]:
        """Compare what is owned with the shares, and return the steps between them."""
        shares = self._shares()
        steps: list[Assign[M] | Revoke[M]] = []
        for partition, owned in sorted(self._owned.items()):
            stays = shares.get(partition) == owned.member
            if stays and owned.is_revoked:
                steps.append(Assign(partition, owned.member))
            elif not stays and not owned.is_revoked:
                steps.append(Revoke(partition, owned.member))
            owned.is_revoked = not stays
        for partition, member in sorted(shares.items(), key=lambda share: share[0]):
            if partition not in self._owned:
                self._owned[partition] = _Ownership(member)
                steps.append(Assign(partition, member))
        return steps

    def _shares(self) -> dict[int, M]:
        """Return the member that each partition should belong to, if any."""
        shares: dict[int, M] = {}
        present = set(self._partitions)
        sharing: list[M] = []
        for member, wanted in self._members.items():
            if member in self._suspended:
                continue
            if wanted is None:
                sharing.append(member)
                continue
            for partition in wanted & present:
                shares.setdefault(partition, member)
        if sharing:
            rest = [number for number in self._partitions if number not in shares]
            shares.update(self._evenly(rest, sharing))
        return shares

    def _evenly(self, partitions: list[int], members: list[M]) -> dict[int, M]:
        """Share partitions among members, everybody keeping as much as is fair."""
        held: dict[M, list[int]] = {member: [] for member in members}
        for partition in partitions:
            owner = self.owner(partition)
            if owner is not None and owner in held:
                held[owner].append(partition)
        least, more = divmod(len(partitions), len(members))
        # One more each for those that have most: they would lose one otherwise.
        ordered = sorted(members, key=lambda member: -len(held[member]))
        quota = {member: least + (place < more) for place, member in enumerate(ordered)}
        shares: dict[int, M] = {}
        for member in members:
            # What is being delivered stays, rather than what was revoked and would be given back.
            held[member].sort(key=lambda number: (self.is_revoked(number), number))
            shares.update(dict.fromkeys(held[member][: quota[member]], member))
        free = iter([number for number in partitions if number not in shares])
        for member in members:
            for _ in range(quota[member] - min(len(held[member]), quota[member])):
                shares[next(free)] = member
        return shares
