"""What a node tells Prometheus: figures under RabbitMQ's names, and Leveret's own beside them.

`exposition` is the text format, `families` who is told of, `reading` where the figures come from,
`endpoints` the paths at which a scraper asks, on the management port and on a port of their own.
"""
