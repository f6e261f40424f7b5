"""Facts about a connection and its channels for management (leveret.core.clients)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from leveret.amqp.consumer import ChannelConsumer
from leveret.amqp.settlements import LeaseHolder
from leveret.core.clients import ChannelFacts, ChannelFlows, ClientFacts, ConsumerFacts, Holder

if TYPE_CHECKING:
    from collections.abc import Mapping

    from leveret.amqp.channel import Channel
    from leveret.amqp.protocol import ConnectionBase


def describe(connection: ConnectionBase, channel_count: int) -> ClientFacts:
    """Return the facts of an open connection at this moment."""
    tuned = connection.tuned
    return ClientFacts(
        endpoints=connection.transport.endpoints,
        state="blocked" if connection.is_blocked else "running",
        mechanism=connection.mechanism,
        connected_at_ms=connection.connected_at_ms,
        channel_count=channel_count,
        channel_max=tuned.channel_max,
        frame_bytes_max=tuned.frame_max,
        heartbeat_seconds=tuned.heartbeat_seconds,
        client_properties=connection.client_properties,
    )


def describe_channels(channels: Mapping[int, Channel]) -> list[ChannelFacts]:
    """Return the facts of each open channel, by number."""
    return [_describe_channel(channel) for _, channel in sorted(channels.items()) if channel.alive]


def describe_flows(channels: Mapping[int, Channel]) -> list[ChannelFlows]:
    """Return the message counters of each open channel, by number."""
    return [_describe_flows(channel) for _, channel in sorted(channels.items()) if channel.alive]


def _describe_flows(channel: Channel) -> ChannelFlows:
    delivery_statistics_by_queue = channel.delivery_statistics_by_queue.items()
    return ChannelFlows(
        number=channel.number,
        published={
            name.decode(): publish_statistics
            for name, publish_statistics in channel.slot.publish_statistics_by_exchange.items()
        },
        handed_out={
            queue.name: tuple(of.values())
            for queue, of in delivery_statistics_by_queue
            if not queue.deleted
        },
    )


def _describe_channel(channel: Channel) -> ChannelFacts:
    confirms = channel.confirms
    return ChannelFacts(
        number=channel.number,
        prefetch=channel.consumer_prefetch,
        global_prefetch=channel.prefetch,
        unacknowledged=channel.unacked.count,
        unconfirmed=0 if confirms is None else channel.slot.published - confirms.answered,
        confirms=confirms is not None,
        transactional=channel.transaction is not None,
        counters=channel.slot.counters,
        consumers=tuple(map(_describe_consumer, channel.consumers.values())),
    )


def _describe_consumer(consumer: ChannelConsumer) -> ConsumerFacts:
    return ConsumerFacts(
        tag=consumer.tag,
        queue=consumer.queue.name,
        no_ack=consumer.no_ack,
        prefetch=consumer.prefetch,
        priority=consumer.priority,
        in_flight=consumer.in_flight,
        arguments=consumer.arguments,
    )


def holder_of(channels: Mapping[int, Channel], queue: object, offset: int) -> Holder | None:
    """Return the channel, delivery tag and consumer that hold a record of a queue, or None."""
    held = _Holders(queue)
    for number, channel in channels.items():
        found = channel.unacked.holder_at(held, offset)
        if found is not None:
            tag, holder = found
            consumer = holder.tag if isinstance(holder, ChannelConsumer) else None
            return Holder(number, tag, consumer)
    return None


class _Holders:
    """Container of all holders of one queue's messages, ended consumers included."""

    def __init__(self, queue: object) -> None:
        self._queue = queue

    def __contains__(self, holder: object) -> bool:
        return isinstance(holder, LeaseHolder) and holder.queue.whole is self._queue
