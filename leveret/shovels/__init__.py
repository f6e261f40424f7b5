"""Shovels at work: `shovels` starts them, `runner` keeps one going, `ends` sets up its two ends.

What is decided about messages is in leveret.features.shovels, without I/O. Only here are brokers
connected to (`dialing`), waited for and logged about. `placing` says which node of a cluster runs
which shovel.
"""
