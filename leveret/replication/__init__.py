"""Replication of a shard: its logs, led by one node and copied byte for byte by others.

Everything here decides and nothing here waits: an event (a message, an answer, a tick of the clock)
goes in, and the effects that follow from it come out as values (`effects`), for a shell to perform.
The rules are those of the design's executable model, under whose names the tests have them.

    shard        the coordinator's entry of a shard: leader, epoch, in-sync set
    replica      one node's part in a shard: it follows, leads, or waits; `Replica` is the way in
    follower     ... while another node leads: attach, cut, append, flush, acknowledge
    leader       ... while it leads itself: what is committed, who is in sync
    copying      what the leader knows of one follower
    in_sync_set  the recorded set of a reign, and the write that changes it
    attaching    what two nodes have in common of their logs
    messages     between leader and follower; `codec` has their bytes
    lease        how long a node may surely serve
"""
