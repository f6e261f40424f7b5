"""Learning of the messages that an earlier run has left in a queue.

The log knows which offsets are not settled. Which priority a message has, and when it expires,
stands in its record only: the backlog is read once, a window at a time, in the background.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from leveret.core.window import LogWindow
from leveret.errors import StorageError

if TYPE_CHECKING:
    from leveret.core.queue import Queue


async def learn_backlog(queue: Queue, *, show: bool) -> None:
    """Let `queue` learn of everything unsettled that is committed now.

    `show`: what was learned becomes ready, as nothing of it was before. What cannot be read is
    skipped, and will be dealt with by whoever must have it.
    """
    window = LogWindow(queue.log)
    stop = queue.log.committed
    offset = queue.log.settled.gaps(0, stop).first
    while offset is not None and not queue.deleted:
        try:
            batches = await window.fill(offset)
        except StorageError:
            break
        for batch in batches:
            if batch.base_offset < stop:
                queue.learn(batch, settled=queue.log.settled)
        offset = min(batches[-1].stop_offset, stop)
        if show:
            queue.machine.committed(offset)
        offset = queue.log.settled.gaps(offset, stop).first
    if show and not queue.deleted:
        queue.machine.committed(stop)
