"""Publishers, consumers and rejecters of one share of a plan, on their connections."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

from pamqp import commands, frame

from leveret.perf.board import ROW_BYTES
from leveret.perf.consumer import ACK_EACH, ACK_EVERY, ACK_READ, LoadConsumer
from leveret.perf.options import AckFrames, Mode
from leveret.perf.publisher import Burst, LoadPublisher, Numbers
from leveret.perf.session import open_sessions
from leveret.perf.station import Station
from leveret.perf.template import publish_template
from leveret.perf.verifier import Verifier
from leveret.perf.wire import WorkerCounters

if TYPE_CHECKING:
    import select
    from collections.abc import Iterator

    from leveret.perf.plan import PublisherPlan, Share

__all__ = ["Crew"]

BURST_BYTES = 1 << 17  # one send: enough to amortise the call, small enough to stay cached
BURST_SLOTS_MIN = 4
BURST_SLOTS_MAX = 4096
MILLISECOND_NS = 1_000_000
FRAMES = {AckFrames.EACH: ACK_EACH, AckFrames.EVERY: ACK_EVERY, AckFrames.READ: ACK_READ}


class Crew:
    """Opens a share's connections, registered with `poll`, and creates its members."""

    def __init__(self, share: Share, counters: WorkerCounters, poll: select.epoll) -> None:
        plan = self._plan = share.plan
        self._counters = counters
        self._poll = poll
        self.stations: dict[int, Station] = {}  # by the socket's number
        self.publishers: list[LoadPublisher] = []
        self.consumers: list[LoadConsumer] = []  # without the rejecters
        self.verifier = (
            Verifier(plan.publishers, plan.numbers, plan.copies) if plan.verify else None
        )
        for members, add in (
            (share.publishers, self._add_publishers),
            (share.consumers, self._add_consumers),
            (share.rejecters, self._add_rejecters),
        ):
            for station, indices in self._connect(members):
                add(station, indices)
                station.hand_over()

    def _connect(self, members: tuple[int, ...]) -> Iterator[tuple[Station, tuple[int, ...]]]:
        """Yield connections for `members`, `channels` of them on each, as they open."""
        width = self._plan.channels
        cuts = iter([members[at : at + width] for at in range(0, len(members), width)])
        count = -(-len(members) // width)
        for sessions in open_sessions(self._plan.address, count, channels=width):
            stations = [Station(session, self._poll) for session in sessions]
            self.stations.update((station.link.fd, station) for station in stations)
            # Not strict: the cuts go on where the group of stations ends.
            yield from zip(stations, cuts, strict=False)

    def _add_publishers(self, station: Station, indices: tuple[int, ...]) -> None:
        plan = self._plan
        for channel, index in enumerate(indices, start=1):
            if plan.confirms:
                station.session.call(commands.Confirm.Select(), channel)
            member = plan.publisher_plan(index)
            publisher = LoadPublisher(
                station.link,
                channel,
                member.identity,
                self._burst(station, channel, member),
                Numbers(member.first, member.step, plan.numbers, member.seed),
                self._counters,
                member.quota,
                plan.confirms,
                Numbers(0, 1, plan.priority_max + 1, index),
            )
            station.publishers.append(publisher)
            self.publishers.append(publisher)

    def _burst(self, station: Station, channel: int, member: PublisherPlan) -> Burst:
        plan = self._plan
        template = publish_template(
            plan,
            channel,
            member.first,
            varied=member.seed is not None or member.step < plan.numbers,
            frame_bytes_max=station.session.frame_bytes_max,
        )
        slots = max(BURST_SLOTS_MIN, min(BURST_SLOTS_MAX, BURST_BYTES // len(template.data)))
        return Burst(
            template.data,
            min(slots, plan.confirms or slots),
            number_at=template.number_at,
            priority_at=template.priority_at,
            stamp_at=template.stamp_at,
            delay_ns=plan.delay * MILLISECOND_NS,
        )

    def _add_consumers(self, station: Station, indices: tuple[int, ...]) -> None:
        plan = self._plan
        for channel, index in enumerate(indices, start=1):
            names = {number: plan.consumed_name(number) for number in plan.consumer_queues(index)}
            if not plan.get:
                self._consume(station, channel, names, no_ack=not plan.ack_every)
            consumer = LoadConsumer(
                station.link,
                channel,
                self._counters,
                plan.ack_every,
                FRAMES[plan.ack_frames],
                stamped=plan.stamped and plan.mode is Mode.FLOW,
                verifier=self.verifier,
                slot_from_tag=bool(plan.fanout),
                gets=self._get_frames(channel, names) if plan.get else None,
                quota=plan.get_quota(index),
            )
            self.consumers.append(consumer)

    def _add_rejecters(self, station: Station, indices: tuple[int, ...]) -> None:
        """Add rejecters, which are not counted: what they take is consumed as a dead letter.

        They do not batch acknowledgements: a message that they kept would be missed at the run's
        end.
        """
        plan = self._plan
        frames = ACK_EACH if plan.ack_frames is AckFrames.EACH else ACK_READ
        for channel, index in enumerate(indices, start=1):
            names = {number: plan.queue_name(number) for number in plan.rejecter_queues(index)}
            self._consume(station, channel, names, no_ack=False)
            uncounted = WorkerCounters(memoryview(bytearray(ROW_BYTES)))
            LoadConsumer(station.link, channel, uncounted, 1, frames, stamped=False, reject=True)

    def _consume(
        self, station: Station, channel: int, names: dict[int, str], *, no_ack: bool
    ) -> None:
        """Prepare to consume from queues; the consumer tags are their numbers."""
        if self._plan.prefetch:
            qos = commands.Basic.Qos(prefetch_count=self._plan.prefetch)
            station.session.call(qos, channel)
        for number, name in names.items():
            method = commands.Basic.Consume(
                queue=name,
                consumer_tag=str(number),
                no_ack=no_ack,
                arguments=cast("dict[str, Any]", self._plan.consumer_arguments),
            )
            station.consumes.append(frame.marshal(method, channel))

    def _get_frames(self, channel: int, names: dict[int, str]) -> list[bytes]:
        no_ack = not self._plan.ack_every
        methods = (commands.Basic.Get(queue=name, no_ack=no_ack) for name in names.values())
        return [frame.marshal(method, channel) for method in methods]
