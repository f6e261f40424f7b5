"""Partitions replicated over several nodes: who leads, who is in sync, and how a log is copied.

`replication` are the machines of one replica, `controller` decides who leads. Plain functions of
their arguments, time included: the nodes' shells and the simulator (tests/sim) drive the same code.
"""
