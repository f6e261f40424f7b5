"""Range reads: stretches of a queue's log as columns, for readers that keep their own place."""
