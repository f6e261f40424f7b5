"""Harness of system tests: a broker's process, raw clients, and the accounts kept."""
