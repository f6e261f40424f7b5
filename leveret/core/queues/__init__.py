"""The kinds of queue, their limits and lifetimes.

`queue` and `stream` are the two kinds, `open_queue` is their common base, `delivering_queue` the
deliveries of a queue; `state` decides which consumer gets which messages; `overflow`, `expiry`,
`deadlines`, `delayed_requeue` and `expiry_and_limits` are limits and lifetimes; `reading` reads the
log, `backlog` what an earlier run has left in it.
"""
