"""Ledgers: the delivery state of a queue, i.e. which offsets are ready, leased or settled.

`ledger` is the plain one, in order of offsets; `priorities` and `groups` deliver in other orders,
`weighing` also counts bytes.
"""
