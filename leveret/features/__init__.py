"""Optional features of queues and messages, a folder each.

`rules` of a feature are decisions without state or I/O; the core imports nothing else of it.
"""
