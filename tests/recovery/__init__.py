"""Restarts: what a feature knew before, it knows afterwards, from its logs alone."""
