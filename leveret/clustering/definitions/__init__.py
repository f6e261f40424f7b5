"""Definitions that all nodes of a cluster share: the controller changes them, others follow."""
