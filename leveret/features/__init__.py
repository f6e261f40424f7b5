"""Optional features of queues and messages, a folder each.

`rules` of a feature are decisions without state or I/O. The core imports those of filters and
alerts, which check what clients and operators state, and nothing else.
"""
