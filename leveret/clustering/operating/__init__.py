"""Operating a cluster: leaders that change by intention, moves of partitions, nodes that leave."""
