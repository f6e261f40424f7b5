"""Options of a run: `leveret perf` has an option for each field."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from typing import Annotated

import typer

__all__ = ["AckFrames", "Mode", "Options"]

# The groups of the help.
_run = partial(typer.Option, rich_help_panel="The run")
_publishing = partial(typer.Option, rich_help_panel="Publishing")
_consuming = partial(typer.Option, rich_help_panel="Consuming")
_queues = partial(typer.Option, rich_help_panel="Queues and exchange")
_client = partial(typer.Option, rich_help_panel="The client")


class Mode(StrEnum):
    """Mode of a run: publish, consume, or both, or hold idle connections."""

    FLOW = "flow"  # publish and consume at once
    FILL = "fill"  # publish only and leave the queues as they are
    DRAIN = "drain"  # consume what the queues hold
    IDLE = "idle"  # hold connections that do nothing


class AckFrames(StrEnum):
    """Framing of acknowledgements."""

    EACH = "each"  # a frame for every message
    EVERY = "every"  # one `multiple` frame for every n messages
    READ = "read"  # one `multiple` frame for what one read of the socket brought


@dataclass(frozen=True)
class Options:
    """All options of one run. Times in seconds, sizes in bytes, rate in messages a second."""

    # The run
    uri: Annotated[str, _run(help="Broker to load.")] = "amqp://guest:guest@127.0.0.1:5672/"
    mode: Annotated[
        Mode,
        _run(
            help="flow: publish and consume; fill: publish and keep; drain: consume what is there; "
            "idle: hold connections."
        ),
    ] = Mode.FLOW
    messages: Annotated[int, _run(min=0, help="Messages in all; 0: no limit.")] = 0
    duration: Annotated[
        float, _run(min=0, help="Seconds to measure; 10 when neither limit is given.")
    ] = 0
    warm_up: Annotated[float, _run(min=0, help="Seconds before measuring.")] = 0
    drain_timeout: Annotated[
        float, _run(min=0, help="Seconds without progress after which to give up.")
    ] = 10
    verify: Annotated[bool, _run(help="Check that every message arrives exactly once.")] = False

    # Publishing
    publishers: Annotated[int, _publishing(min=0, help="Publishers.")] = 1
    size: Annotated[int, _publishing(min=0, help="Body size in bytes.")] = 16
    rate: Annotated[
        float, _publishing(min=0, help="Messages a second in all; 0: as fast as possible.")
    ] = 0
    confirms: Annotated[
        int, _publishing(min=0, help="Unconfirmed messages per publisher; 0: no confirm mode.")
    ] = 0
    persistent: Annotated[bool, _publishing(help="Persistent messages.")] = False
    priority_max: Annotated[
        int, _publishing(min=0, max=255, help="Priorities at random from 0 to this; 0: none.")
    ] = 0
    expiration: Annotated[
        int | None, _publishing(min=0, help="Milliseconds after which each message expires.")
    ] = None
    delay: Annotated[
        int,
        _publishing(
            min=0,
            help="Milliseconds that each message waits in the broker (header x-delay); "
            "latency counts from then on.",
        ),
    ] = 0
    routing_key: Annotated[
        str, _publishing(help="Key of each message; {} is a binding's number.")
    ] = "perf.{}"
    random_keys: Annotated[
        bool, _publishing(help="Choose the number at random instead of in turn.")
    ] = False

    # Consuming
    consumers: Annotated[int, _consuming(min=0, help="Consumers.")] = 1
    prefetch: Annotated[int, _consuming(min=0, help="Prefetch count; 0: unlimited.")] = 0
    ack_every: Annotated[
        int, _consuming(min=0, help="Acknowledge every n messages; 0: automatically.")
    ] = 0
    ack_frames: Annotated[
        AckFrames,
        _consuming(
            help="each: a frame per message; every: one multiple frame per n; "
            "read: one multiple frame per read of the socket that brought n or more."
        ),
    ] = AckFrames.EVERY
    get: Annotated[bool, _consuming(help="Consume with basic.get, one by one.")] = False
    dead_letters: Annotated[
        bool, _consuming(help="Give each queue another for its dead letters; consume those.")
    ] = False
    rejecters: Annotated[
        int, _consuming(min=0, help="Consumers that reject what was published into dead letters.")
    ] = 0

    consumer_argument: Annotated[
        list[str] | None,
        _consuming(help="KEY=VALUE of basic.consume: x-stream-offset=first reads a stream again."),
    ] = None

    # Queues and exchange
    queues: Annotated[int, _queues(min=1, help="Queues.")] = 1
    durable: Annotated[
        bool | None, _queues(help="Durable queues; by default when messages are persistent.")
    ] = None
    queue_type: Annotated[str, _queues(help="x-queue-type; empty: send none.")] = "classic"
    queue_argument: Annotated[
        list[str] | None, _queues(help="KEY=VALUE; numbers, true and false are recognised.")
    ] = None
    fanout: Annotated[int, _queues(min=0, help="A fanout exchange bound to so many queues.")] = 0
    exchange_type: Annotated[
        str, _queues(help="Publish to an exchange of this type; empty: the default one.")
    ] = ""
    bindings: Annotated[
        int, _queues(min=0, help="Bindings of that exchange, spread over the queues.")
    ] = 0
    binding_key: Annotated[str, _queues(help="Key of each binding; {} is its number.")] = "perf.{}"
    name: Annotated[
        str, _queues(help="Name of the exchange and beginning of the queues' names.")
    ] = "leveret-perf"
    keep: Annotated[bool, _queues(help="Leave queues and exchange behind.")] = False
    existing: Annotated[
        bool, _queues(help="Use queues and exchange that are there: declare and delete nothing.")
    ] = False

    # The client
    channels: Annotated[
        int, _client(min=1, help="Publishers (or consumers) that share a connection.")
    ] = 1
    connections: Annotated[int, _client(min=1, help="Connections of --mode idle.")] = 100
    processes: Annotated[int, _client(min=1, max=16, help="Processes to spread the work over.")] = 1
    spin: Annotated[
        bool, _client(help="Never sleep: on a core of its own this takes waking off latency.")
    ] = False
