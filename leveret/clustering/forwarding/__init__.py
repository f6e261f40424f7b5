"""Forwarding: what the clients of one node do with a partition that another node leads.

    client ── RemotePartition ── ForwardingChannel ═══ link's stream ═══ PartitionSession ── Queue

A `RemotePartition` stands where the queue would stand: publishes gather in its builder and travel
as one batch a turn, deliveries come as batches into a buffer and from there to the consumers. Each
partition that a node uses has one stream, in which everything keeps its order. `wire` has the
messages.
"""
