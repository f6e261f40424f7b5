"""What has passed through a node, how fast it passes now, and how that was before.

Counting happens where batches pass, in compiled code (ports.counters). Here the counters are found
by whom they belong to, added up, and sampled; nothing here is called for a message or a batch.
"""
