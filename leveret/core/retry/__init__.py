"""Trying again: failed messages wait in a retry topic before they come back to their queue.

`retrying` sends them there and back, `order` keeps those of the same key behind each other.
"""
