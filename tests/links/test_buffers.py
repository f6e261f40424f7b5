"""Memory of received messages: used again, and never while somebody still looks at it."""

import random

from leveret.links.buffers import STEP_BYTES, MessageBuffers


def test_memory_is_used_again_once_its_views_are_gone():
    buffers = MessageBuffers(10 * STEP_BYTES)
    first = buffers.take(100_000)
    memory = first.obj
    second = buffers.take(100_000)
    assert second.obj is not memory
    part = first[10:20].toreadonly()
    del first
    assert buffers.take(100_000).obj is not memory, "a part of it is still seen"
    del part
    assert any(buffers.take(100_000).obj is memory for _ in range(4))


def test_no_two_views_share_memory():
    chance = random.Random(1)
    buffers = MessageBuffers(30 * STEP_BYTES)
    held = []
    for number in range(3000):
        size = chance.choice((20_000, 70_000, 300_000, 5_000_000))
        view = buffers.take(size)
        assert len(view) == size
        view[:8] = view[-8:] = number.to_bytes(8, "little")
        held.append((number, view))
        if len(held) > chance.randrange(12):
            held.pop(chance.randrange(len(held)))
        for known, each in held:
            assert each[:8] == each[-8:] == known.to_bytes(8, "little")
        assert buffers.kept_bytes <= 30 * STEP_BYTES


def test_small_messages_do_not_hold_large_memory():
    buffers = MessageBuffers(100 * STEP_BYTES)
    buffers.take(50 * STEP_BYTES)
    assert len(buffers.take(20_000).obj) == STEP_BYTES
