"""Internal topics live beside the logs of queues and are not taken for them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from leveret.core.logs.internal_topics import InternalTopics, state_name
from leveret.features.dedup.exchange_log import exchanges_window_id
from leveret.features.delay.schedule_ids import ids_prefix
from leveret.ports import Durability
from tests.storage.harness import store_at

if TYPE_CHECKING:
    from pathlib import Path

PLACE = "/", "leveret.delayed", "internal-1"


async def test_a_topic_is_found_again_and_is_no_queues(tmp_path: Path) -> None:
    async with store_at(tmp_path) as store:
        topics = InternalTopics(store, Durability.OS)
        assert not topics.exists(*PLACE)
        log = topics.open(*PLACE)
        log.builder.add(1, 0, b"", b"key", b"header", b"body")
        log.append()
        assert topics.exists(*PLACE)
        assert not topics.exists(*PLACE[:2], "of-a-queue")
    async with store_at(tmp_path) as store:
        topics = InternalTopics(store, Durability.OS)
        assert topics.exists(*PLACE)
        await store.recover([topics.name(*PLACE)])
        assert topics.open(*PLACE).end == 1


def test_the_state_store_tells_virtual_hosts_of_a_name_apart() -> None:
    """Entries about topics of a deleted one may outlive a crash."""
    places = [("v", "internal"), ("v", "internal-1"), ("v", "internal-2"), ("w", "internal-1")]
    for name in (state_name, exchanges_window_id, ids_prefix):
        assert len({name(*place) for place in places}) == len(places)
    assert state_name("v", "internal") == b"v"  # as releases before have written
