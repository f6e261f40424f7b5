"""Which offsets of a queue are ready and which are leased: a ledger for each order of delivery.

`ledger` is the plain one; `priorities` and `groups` deliver in an order of their own (`number_map`
is how groups remember), `weighing` knows bytes as well.
"""
