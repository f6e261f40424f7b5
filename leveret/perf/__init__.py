"""The load generator of `leveret perf`: compiled where it works per message."""
