"""Partitions of queues in use: how many there are, and the end of those that are retired."""
