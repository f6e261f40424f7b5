"""The cluster: which nodes there are, and which of them leads what.

coordination/   the coordinator, which is ZooKeeper
entries         what is kept there
member          a node in one session: registered, linked, with its replica
membership      a node registers, and is live
live_nodes      which nodes are live
controller      elects leaders, as plan says
plan            what the controller writes, from what the coordinator holds
shard_entries   the entry of a shard, read and written
definition_log  definitions as a log, with each node's database behind
links/          the connections between nodes
shard_links     messages of a shard over them
replica_runner  runs a node's replica of a shard: its disk, its links, the coordinator
refresh         reads again what may have changed
"""
