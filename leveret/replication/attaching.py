"""Attaching: how much of a log a leader and a follower have in common, and what follows from that.

Two logs that have at the same place the end of a batch of the same epoch are equal up to there: the
leader of an epoch only appends, and followers append at their end alone. So the common place is the
smaller end of the largest epoch that both have. What a follower has behind it was never committed.

Files that stand before the common place and are not equal in name were removed or compacted since.
Both is done with committed files only, so what the leader has is right; what it has removed is not
needed, and what it has compacted is copied as a whole.
"""

from __future__ import annotations

from itertools import takewhile
from typing import TYPE_CHECKING, NamedTuple

from leveret.ports.replication import START, LogFiles, LogPlace

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

__all__ = [
    "Comparison",
    "Difference",
    "common_place",
    "compare",
    "difference",
]


class Difference(NamedTuple):
    """Change of a follower's files that makes one log the leader's.

    If there is a `cut`, it cuts off what stands behind, and attaches again. Otherwise it removes
    the files `removed`, and gets the files `copied` as a whole, which take the place of those with
    the same base. What it lacks besides begins at the leader's `place`; the next record there has
    the `offset`.
    """

    log: str
    cut: LogPlace | None = None
    removed: tuple[tuple[int, int], ...] = ()
    copied: tuple[tuple[int, int], ...] = ()
    place: LogPlace = START
    offset: int = 0


class Comparison(NamedTuple):
    """Logs in which a follower differs from `ours`; those that we do not have are cut to START."""

    differences: tuple[Difference, ...]
    ours: Mapping[str, LogFiles]


def compare(
    ours: Mapping[str, LogFiles],
    theirs: Iterable[LogFiles],
    *,
    keeps: bool,
    has_last: Callable[[LogFiles], bool],
) -> Comparison:
    """Return what a follower is to do in order to have the logs `ours`.

    One that `keeps` what it has is in sync: it has all that is committed. `has_last` tells whether
    our log has a follower's last batch, in a file that both have.
    """
    follower = {log.log: log for log in theirs}
    found = [
        difference(log, follower.get(name, LogFiles(name)), keeps=keeps, has_last=has_last)
        for name, log in ours.items()
        if log != follower.get(name)
    ]
    found += [Difference(name, cut=START) for name in follower if name not in ours]
    return Comparison(tuple(found), ours)


def common_place(leader: LogFiles, follower: LogFiles) -> LogPlace:
    """Return the place in the follower's files up to which two logs are equal."""
    ends = dict(leader.epochs)
    for epoch, theirs in reversed(follower.epochs):
        if epoch in ends:
            return min(theirs, _in_files_of(follower, ends[epoch]))
    return START


def _in_files_of(follower: LogFiles, place: LogPlace) -> LogPlace:
    """Return where a place of the leader is in the follower's files.

    If the follower does not have the file, because it has removed or compacted it as a leader, all
    of the file was committed, and the leader has it to its end.
    """
    if place.file in follower.files or place == START:
        return place
    behind = (LogPlace(*file) for file in follower.files if file[0] > place.base)
    return next(behind, follower.place)


def difference(
    leader: LogFiles,
    follower: LogFiles,
    *,
    keeps: bool,
    has_last: Callable[[LogFiles], bool],
) -> Difference:
    """Return what a follower is to do about a log that the leader has, too.

    A cut may have to be followed by another one: each is further to the front.
    """
    place = common_place(leader, follower)
    if place != follower.place:
        return Difference(follower.log, cut=place)
    ours, theirs = set(leader.files), set(follower.files)
    if follower.last.file in ours & theirs and not has_last(follower):
        # Only what was damaged, or led without what was committed, differs in the same epoch.
        return Difference(follower.log, cut=LogPlace(*follower.last.file))
    if place.file not in ours and not keeps and place != START:
        # What the leader has removed or compacted may have ended before: in the follower's file may
        # be more of that epoch. That of one in sync ends there or before. The same is then true of
        # the file in front of it.
        gone = takewhile(lambda file: file not in ours, reversed(follower.files))
        return Difference(follower.log, cut=LogPlace(min(gone)[0]))
    # A file that has the same base as one of theirs was compacted from that, which may still be
    # there if a crash came before its removal; or it has no messages and is in front of that, and
    # was removed there before, as files with other bases were: then a copy of it does no harm.
    bases = {base for base, _ in theirs}
    has_records = follower.offset > place.base  # of its newest file
    copied = tuple(
        file
        for file in leader.files
        if file not in theirs
        and file[0] in bases
        and (file[0] < place.base or (file[0] == place.base and has_records))
    )
    removed = tuple(file for file in follower.files if file not in ours)
    rest, offset = place, follower.offset
    if place.file not in ours:  # the next file that it does not get as a whole
        behind = (file for file in leader.files if file > place.file and file not in copied)
        following = next(behind, None)
        rest = leader.place if following is None else LogPlace(*following)
        offset = leader.offset if following is None else rest.base
    return Difference(follower.log, None, removed, copied, rest, offset)
