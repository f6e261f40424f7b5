"""Settings: limits of clients and of the node."""

from __future__ import annotations

from typing import Final

from pydantic import Field

from leveret.config.settings import KIB, MIB, Settings

__all__ = ["LimitSettings"]

GIGA: Final = 1_000_000_000  # messages a second: beyond what any node takes


class LimitSettings(Settings):
    """Counts, sizes and rates."""

    connections_max: int = Field(
        65_536,
        ge=1,
        description="Client connections at a time: about 2.5 GB at 40 kB each, and near what one "
        "process may have of open files.",
    )
    channels_per_node_max: int = Field(
        -1,
        ge=-1,
        description="Channels of all connections together, some 3 kB each; -1 for no limit beyond "
        "that of connections and of each one's channels.",
    )
    consumers_per_channel_max: int = Field(
        -1, ge=-1, description="Consumers of one channel; -1 for no limit."
    )
    queues_max: int = Field(
        -1,
        ge=-1,
        description="Queues of all virtual hosts together; -1 for no limit. Each has files and "
        "delivery state, so a client that declares without end takes disk and memory from all.",
    )
    groups_per_queue_max: int = Field(
        1000,
        ge=1,
        description="Consumer groups of one queue or stream. Whoever may read from it can create "
        "them, and they stay until somebody deletes them.",
    )
    group_partitions_per_vhost_max: int = Field(
        50_000,
        ge=1,
        description="Partitions that the consumer groups of one virtual host read, counted for "
        "each group, some 10 kB of memory each: new groups are refused beyond that.",
    )
    exchanges_max: int = Field(
        -1,
        ge=-1,
        description="Exchanges of all virtual hosts together, the predeclared ones included; -1 "
        "for no limit.",
    )

    arguments_bytes_max: int = Field(
        64 * KIB,
        ge=1024,
        description="Bytes of the arguments of one queue, exchange, binding or consumer: each is "
        "kept in memory and on disk and shown in lists. Ordinary ones have some hundred.",
    )
    arguments_values_max: int = Field(
        256,
        ge=16,
        le=4096,
        description="Values of the arguments of one queue, exchange, binding or consumer, nested "
        "ones included: headers exchanges compare some dozens.",
    )
    large_arguments_bytes_max: int = Field(
        4 * MIB,
        ge=0,
        description="Bytes of all arguments of a virtual host's queues, exchanges and bindings "
        "that have more than 1 KiB of them: many such fill memory and every list of them.",
    )

    message_bytes_max: int = Field(
        16 * MIB,
        ge=1,
        le=512 * MIB,
        description="Bytes of a message body, as in RabbitMQ 4: a body is held in memory whole.",
    )
    unfinished_message_bytes_max: int = Field(
        128 * MIB,
        ge=0,
        description="Bytes that a connection's incomplete messages may hold, on all its channels: "
        "2,047 channels could keep 16 MiB each otherwise. One message of any size is allowed.",
    )
    node_unfinished_bytes_max: int = Field(
        256 * MIB,
        ge=1 * MIB,
        description="Bytes that incomplete messages and open transactions of all connections may "
        "hold: beyond that one connection at a time is read until it has finished. Sixteen of the "
        "largest messages at once keep a fast network busy.",
    )
    unfinished_stall_ms: int = Field(
        2000,
        ge=100,
        description="Milliseconds without a completed message at that limit after which the "
        "connection that holds most is closed: a client that sends at all sends more in that "
        "time.",
    )
    read_buffer_bytes: int = Field(
        256 * KIB,
        ge=8 * KIB,
        description="Bytes read from a socket at a time: large enough that a busy publisher's "
        "batch is worth a write. Shared by the connections, not one each.",
    )
    connection_turn_microseconds: int = Field(
        1000,
        ge=50,
        le=100_000,
        description="Microseconds for which what a connection has sent is worked through before "
        "others have their turn: more than a busy publisher's buffer takes, and too short for "
        "other connections to notice.",
    )
    write_high_water_bytes: int = Field(
        1 * MIB,
        ge=64 * KIB,
        description="Bytes waiting to be sent on one connection before deliveries to it pause: "
        "some milliseconds of a fast network, and no memory leak for a consumer that stopped.",
    )

    connection_publish_rate: int = Field(
        -1,
        ge=-1,
        le=GIGA,
        description="Messages a second that each connection may publish: publishers above it are "
        "throttled, and notified by connection.blocked. -1 for no limit.",
    )
    connection_publish_burst: int = Field(
        -1,
        ge=-1,
        le=GIGA,
        description="Messages that a connection may publish at once after it was quiet; -1 for "
        "what `connection_publish_rate` brings in a second.",
    )
    connection_consume_rate: int = Field(
        -1,
        ge=-1,
        le=GIGA,
        description="Messages a second that are delivered to each connection; -1 for no limit.",
    )
    connection_consume_burst: int = Field(
        -1,
        ge=-1,
        le=GIGA,
        description="Messages that are delivered to a connection at once after it was quiet; -1 "
        "for what `connection_consume_rate` brings in a second.",
    )

    # Alarms: while one stands, publishers are held (connection.blocked) and consumers drain.
    disk_free_bytes_min: int = Field(
        50 * MIB,
        ge=0,
        description="Free bytes of the data directory's file system below which publishers are "
        "blocked: RabbitMQ's number, and room enough for settlements and checkpoints.",
    )
    memory_fraction_max: float = Field(
        0.6,
        gt=0,
        le=1,
        description="Part of the machine's memory that the process may have before publishers are "
        "blocked: RabbitMQ's number; the node's own caches stay far below.",
    )
    resource_check_interval_ms: int = Field(
        1000,
        ge=10,
        description="Milliseconds between checks of disk and memory: an alarm may come this late.",
    )

    # Limits of idempotent producers and de-duplication.
    producers_max: int = Field(
        100_000,
        ge=1,
        description="Idempotent producers of one virtual host, about 300 bytes of memory each: "
        "new ones are refused beyond that.",
    )
    producer_idle_ms: int = Field(
        7 * 24 * 60 * 60 * 1000,
        ge=1000,
        description="Milliseconds after its last message after which a producer's state expires: "
        "longer than any outage after which it continues within its epoch.",
    )
    prepared_messages_max: int = Field(
        100_000,
        ge=1,
        description="Prepared messages of one virtual host that wait to be committed, some 500 "
        "bytes of memory each: a publisher that commits none must not fill the memory.",
    )
    prepared_checks_max: int = Field(
        15,
        ge=0,
        description="Transaction checks sent for a prepared message; after the last one it waits "
        "for an operator. As in RocketMQ.",
    )
    staged_bytes_max: int = Field(
        4 * 1024 * MIB,
        ge=1,
        description="Bytes of the parts that are staged in one virtual host and neither committed "
        "nor aborted: writers that commit nothing must not fill the disk.",
    )
    staged_commit_bytes_max: int = Field(
        256 * MIB,
        ge=1,
        le=2 * 1024 * MIB,
        description="Bytes that one staged batch may take, all copies in queues together: they are "
        "gathered in memory, one batch at a time in a node. A part of a batch has no more.",
    )
    staged_parts_max: int = Field(
        100_000,
        ge=1,
        description="Parts that are staged in one virtual host, some 500 bytes of memory each.",
    )
    staged_writers_max: int = Field(
        10_000,
        ge=1,
        description="Writers of staged batches in one virtual host, some 500 bytes of memory each: "
        "new ones are refused beyond that.",
    )
    staged_parts_per_user_max: int = Field(
        50_000,
        ge=1,
        description="Parts of one user that are staged in one virtual host: half of all, so that "
        "others can stage while one user's batches are not committed.",
    )
    staged_writers_per_user_max: int = Field(
        1_000,
        ge=1,
        description="Writers of one user in one virtual host: a tenth of all, so that nobody can "
        "use up those of others.",
    )
    staged_batches_expire_ms: int = Field(
        24 * 60 * 60 * 1000,
        ge=1000,
        description="Milliseconds after which a part that was not committed is dropped: longer "
        "than any outage of a program after which it commits what it has staged.",
    )
    staged_writer_idle_ms: int = Field(
        30 * 24 * 60 * 60 * 1000,
        ge=1000,
        description="Milliseconds after its last commit after which a writer without staged parts "
        "is forgotten: longer than any outage after which it repeats its last batch.",
    )
    leased_messages_max: int = Field(
        1_000_000,
        ge=1,
        description="Messages that one holder of batch leases may have of a queue: what it has is "
        "withheld from all other consumers until it settles them or is given up.",
    )
    leased_bytes_max: int = Field(
        4 * 1024 * MIB,
        ge=1,
        description="Bytes of the messages that one holder of batch leases may have of a queue, "
        "about, for the same reason. They stay on disk.",
    )
    lease_holders_max: int = Field(
        1_000,
        ge=1,
        description="Holders of batch leases in one virtual host, some kilobytes of memory each: "
        "new ones are refused beyond that.",
    )
    dedup_keys_max: int = Field(
        1_000_000,
        ge=1,
        description="Keys that one de-duplication window holds in memory, 48 to 96 bytes each; "
        "more are looked up on disk, a few microseconds each.",
    )
