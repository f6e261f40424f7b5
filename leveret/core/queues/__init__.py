"""The kinds of queue, their limits and lifetimes.

`queue` and `stream` are the two kinds, `open_queue` is their common base; `state` decides which
consumer gets which messages, `pull` serves batched receives. `arguments`, `settings` and
`equivalence` handle declarations; `overflow`, `sizes`, `expiry`, `deadlines`, `delayed_requeue` and
`expiry_and_limits` limits and lifetimes; `backlog` messages left by an earlier run.
"""
