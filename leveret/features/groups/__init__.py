"""Consumer groups: durable subscriptions of queues that keep messages, and of streams."""
