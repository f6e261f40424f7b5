"""Commands of consumers about their leases, published to the exchange `leveret.lease`.

    routing key   headers                               effect
    extend        x-extend (ms from now), deliveries    the leases last that long; 0: return now
    return        x-delay (ms), deliveries              the messages are returned after the delay

Deliveries are given by `x-delivery-tag`, a delivery of the same channel, or by `x-consumer-tag`:
all that this consumer of the channel holds. Registered by the node as a step of the intake; the
message itself is not stored. The command is carried out before its confirm.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

from leveret.core.command_replies import check_fields
from leveret.core.names import resource
from leveret.core.publish_interceptors import CommandInterceptor
from leveret.core.queues.queue import Queue
from leveret.core.settings.arguments import TERM_MS_MAX
from leveret.core.settings.retry_policy import whole
from leveret.errors import ChannelError

if TYPE_CHECKING:
    from collections.abc import Collection

    from leveret.amqp.channel import Channel
    from leveret.core.logs.log_writer import Committing
    from leveret.core.publish_interceptors import PublishContext
    from leveret.ports.definitions import Arguments

__all__ = ["LEASE_EXCHANGE", "LeaseCommands"]

LEASE_EXCHANGE = b"leveret.lease"
DELIVERY_TAG, CONSUMER_TAG = "x-delivery-tag", "x-consumer-tag"
EXTEND, DELAY = "x-extend", "x-delay"
# Extended deliveries are known one by one: some 200 bytes and a microsecond each.
EXTENDED_AT_ONCE_MAX = 50_000
is_term = whole(0, TERM_MS_MAX, "milliseconds")


class LeaseCommands(CommandInterceptor):
    """Publish interceptor that takes what is published to `leveret.lease`."""

    def intercept(self, context: PublishContext) -> Collection[Committing]:
        """Carry out a lease command (see PublishInterceptor)."""
        channel = cast("Channel", context.channel)  # commands come from channels only
        message = context.message
        match message.routing_key:
            case b"extend":
                check_fields(message.headers, {DELIVERY_TAG, CONSUMER_TAG, EXTEND})
                for_ms = _milliseconds(channel, message.headers, EXTEND)
                runs = _meant(channel, message.headers)
                if sum(last - first + 1 for first, last in runs) > EXTENDED_AT_ONCE_MAX:
                    raise ChannelError(
                        406,
                        f"more than {EXTENDED_AT_ONCE_MAX} deliveries to extend at once by "
                        f"{_described(channel)}; a prefetch count bounds them",
                    )
                channel.needed_leases().extend(runs, for_ms)
            case b"return":
                check_fields(message.headers, {DELIVERY_TAG, CONSUMER_TAG, DELAY})
                delay_ms = _milliseconds(channel, message.headers, DELAY)
                _return_later(channel, _meant(channel, message.headers), delay_ms)
            case other:
                name = other.decode(errors="replace")
                raise ChannelError(406, f"no command '{name}' of {_described(channel)}")
        return ()


def _return_later(channel: Channel, runs: list[tuple[int, int]], delay_ms: int) -> None:
    """Return the outstanding tags of `runs`, all of one holder, to their queue after a delay."""
    if not runs:
        return
    holder = channel.unacked.holder_of(runs[0][0])
    assert holder is not None, "the tags are outstanding"
    if not isinstance(holder.queue, Queue):
        raise ChannelError(406, f"{_described(channel)} returns nothing to streams")
    held = [part for run in runs for part in channel.unacked.take(*run)[0]]
    ranges = [(first, stop) for _, first, stop in held]
    holder.release(sum(stop - first for first, stop in ranges))
    holder.queue.return_(ranges, failed=False, delay_ms=delay_ms)
    channel.wake_consumers()


def _meant(channel: Channel, headers: Arguments) -> list[tuple[int, int]]:
    """Return the runs of outstanding tags that a command names; none if their leases ended."""
    if (DELIVERY_TAG in headers) == (CONSUMER_TAG in headers):
        raise _refused(channel, DELIVERY_TAG, f"either it or {CONSUMER_TAG} is needed")
    if CONSUMER_TAG in headers:
        return _held_by_consumer(channel, headers[CONSUMER_TAG])
    tag = headers[DELIVERY_TAG]
    if isinstance(tag, bool) or not isinstance(tag, int):
        raise _refused(channel, DELIVERY_TAG, "expected integer")
    if not (0 < tag <= channel.slot.delivery_tag and channel.unacked.is_outstanding(tag)):
        raise ChannelError(406, f"unknown delivery tag {tag}")
    return [(tag, tag)] if channel.unacked.holder_of(tag) is not None else []


def _held_by_consumer(channel: Channel, tag: Any) -> list[tuple[int, int]]:
    consumer = channel.consumers.get(tag) if isinstance(tag, str) else None
    if consumer is None:
        raise _refused(channel, CONSUMER_TAG, f"no such consumer on channel {channel.number}")
    return channel.unacked.held_in(consumer, 0, channel.slot.delivery_tag)


def _milliseconds(channel: Channel, headers: Arguments, key: str) -> int:
    """Read a duration in ms, zero allowed, from a header. Raises ChannelError 406."""
    value = headers.get(key)
    if value is None:
        raise _refused(channel, key, "it is needed")
    problem = is_term(value)
    if problem is not None:
        raise _refused(channel, key, problem)
    milliseconds: int = value
    return milliseconds


def _refused(channel: Channel, key: str, problem: str) -> ChannelError:
    return ChannelError(406, f"invalid header '{key}' for {_described(channel)}: {problem}")


def _described(channel: Channel) -> str:
    return resource("exchange", LEASE_EXCHANGE.decode(), channel.vhost.name)
