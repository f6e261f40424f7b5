"""Statistics of a node: counters, rates and their history.

Compiled code counts where batches pass (ports.counters). Here the counters are grouped by owner,
added up, and sampled; nothing here is called per message or batch.
"""
