"""Retries: failed messages wait in a retry topic before they come back to their queue.

`rules` is the retry policy, `retrying` moves messages there and back, `key_order` keeps messages of
the same key in order.
"""
