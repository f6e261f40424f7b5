"""Progress of a streaming query, shown in the broker as that of a consumer group.

The checkpoint of the query is the truth; the group is for people, who see the lag of the query
beside that of other consumers, and for topics whose retention waits for it
(`x-retention-waits-for`). When Spark asks where the next micro-batch ends, everything up to where
it begins was written by the sink: that is committed to the group.
"""

from __future__ import annotations

import http.client
import logging
import time
from typing import TYPE_CHECKING, Final

from leveret.range_reader import ReadRefusedError

if TYPE_CHECKING:
    from leveret.spark.offsets import TopicOffsets
    from leveret.spark.servers import BrokerServers

__all__ = ["GroupProgress"]

logger = logging.getLogger(__name__)

AGAIN_S: Final = 10.0  # after a commit that has failed


class GroupProgress:
    """Commits a query's offsets to the group `name` of each topic. A failure ends no query."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._committed: dict[str, dict[int, int]] = {}
        self._not_before_s = 0.0

    def note(self, servers: BrokerServers, offsets: TopicOffsets) -> None:
        """Commit what is new in the offsets below which everything was processed."""
        if time.monotonic() < self._not_before_s:
            return
        for topic, places in offsets.by_topic.items():
            known = self._committed.setdefault(topic, {})
            moved = {number: at for number, at in places.items() if known.get(number) != at}
            if not moved:
                continue
            try:
                servers.commit_offsets(topic, self._name, moved)
            except (OSError, http.client.HTTPException, ReadRefusedError) as error:
                self._not_before_s = time.monotonic() + AGAIN_S
                logger.warning(
                    "progress is not shown in consumer group '%s' of topic '%s' now: %s",
                    *(self._name, topic, error),
                )
                return
            known.update(moved)
