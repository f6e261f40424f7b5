"""The cluster: which nodes there are, and which of them leads what.

plan    what the controller writes, from what the coordinator holds
links/  the connections between nodes
"""
