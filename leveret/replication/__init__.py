"""Replication between nodes: shells around the machines of `leveret.cluster`.

    Replicator ─── the role of each partition on this node, as the coordinator's state says
      ├── LedPartition       a log that this node leads: answers followers, asks for the in-sync set
      ├── FollowedPartition  a log that follows: fetches, appends, truncates
      └── channels           one stream to each leader, one from each follower, for all partitions
    LinkReports ────── which nodes have links with each other: who has none to others yields
    PartitionTable ─── the states of all partitions, parsed
    ControllerDuty ─── elects leaders while this node is the cluster's controller

What the nodes send each other is in `wire`.
"""
