"""Transactions whose parts are led by several nodes: numbers, and the machine that decides.

numbers     which partition of the decisions, and which epoch of its leader, a number is from
decisions   what the leader of such a partition says, and when it may forget
"""
