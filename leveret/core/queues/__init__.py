"""The kinds of queue and what they do beside handing out messages.

`queue` and `stream` are the two kinds, `open_queue` what they have in common; `machine` decides who
gets what, `pull` serves those who ask by batches. `arguments`, `settings` and `equivalence` are how
a queue was declared; `expiry_and_limits`, `overflow`, `sizes`, `deadlines`, `queue_expiry` and
`delayed_requeue` its limits and lifetimes; `backlog` what an earlier run has left in it.
"""
