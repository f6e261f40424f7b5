"""Frames of one publish, which a burst then repeats."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from pamqp import body, commands, encode, frame, header

from leveret.perf.plan import NUMBER_FORMAT

if TYPE_CHECKING:
    from leveret.perf.plan import LoadPlan

__all__ = ["Template", "publish_template"]

FRAME_OVERHEAD_BYTES = 8
FRAME_HEADER_BYTES = 7
PROPERTIES_AT = FRAME_HEADER_BYTES + 14  # of a content header: class, weight, size, flags
FILLING = b"leveret."
PERSISTENT = 2
DELAY = "x-delay"


@dataclass(frozen=True)
class Template:
    """Bytes of a publish, and positions of what differs between messages (-1: none)."""

    data: bytes
    number_at: int
    priority_at: int
    stamp_at: int


def publish_template(
    plan: LoadPlan, channel: int, number: int, *, varied: bool, frame_bytes_max: int
) -> Template:
    """Return a message of the plan; `number` stays in its key unless the key is `varied`."""
    key_before, brace, key_after = plan.key_template.partition("{}")
    key = key_before + (NUMBER_FORMAT.format(number) if brace else "") + key_after
    method = frame.marshal(commands.Basic.Publish(exchange=plan.exchange, routing_key=key), channel)
    # The method frame ends with the key, a byte of flags and the frame's end.
    key_at = len(method) - 2 - len(key.encode())
    number_at = key_at + len(key_before.encode()) if brace and varied else -1
    properties = commands.Basic.Properties(
        headers={DELAY: plan.delay} if plan.delay else None,
        delivery_mode=PERSISTENT if plan.persistent else None,
        priority=0 if plan.priority_max else None,
        expiration=None if plan.expiration is None else str(plan.expiration),
    )
    content = frame.marshal(header.ContentHeader(0, plan.size, properties), channel)
    # Among the properties that a plan may set, headers and delivery mode precede the priority.
    before = (len(encode.field_table({DELAY: plan.delay})) if plan.delay else 0) + plan.persistent
    priority_at = len(method) + PROPERTIES_AT + before if plan.priority_max else -1
    stamp_at = len(method) + len(content) + FRAME_HEADER_BYTES if plan.stamped else -1
    payload = (FILLING * (plan.size // len(FILLING) + 1))[: plan.size]
    part_bytes = frame_bytes_max - FRAME_OVERHEAD_BYTES
    parts = [payload[at : at + part_bytes] for at in range(0, plan.size, part_bytes)]
    bodies = b"".join(frame.marshal(body.ContentBody(part), channel) for part in parts)
    return Template(method + content + bodies, number_at, priority_at, stamp_at)
