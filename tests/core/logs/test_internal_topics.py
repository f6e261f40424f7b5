"""Internal topics live beside the logs of queues and are not taken for them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from leveret.core.logs.internal_topics import InternalTopics
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
