"""Benchmark of a cluster on one machine; `python -m bench.cluster`, see README.md beside."""
