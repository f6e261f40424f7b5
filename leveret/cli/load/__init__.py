"""The load generator behind `leveret perf`: compiled where it works per message."""
