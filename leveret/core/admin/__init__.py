"""Commands of administrators: the registry, and what commands of all packages share."""
