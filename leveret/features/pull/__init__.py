"""Pulling messages by HTTP, and leases with a time limit.

`rules` are the commands on leases, `receipts` what a puller gets to settle with, `pull` the pulls
of a broker.
"""
