"""Retries: failed messages wait in a retry topic before they come back to their queue.

`retrying` moves them there and back, `order` keeps messages of the same key in order.
"""
