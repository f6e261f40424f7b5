"""The cluster: which nodes there are, and which of them leads what.

plan            what the controller writes, from what the coordinator holds
links/          the connections between nodes
shard_links     messages of a shard over them
replica_runner  runs a node's replica of a shard: its disk, its links, the coordinator
"""
