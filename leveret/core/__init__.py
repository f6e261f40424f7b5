"""What a broker means: virtual hosts, exchanges, routing, queues, consumers, access."""
