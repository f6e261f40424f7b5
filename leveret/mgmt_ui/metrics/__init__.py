"""Metrics for Prometheus: under RabbitMQ's names, and Leveret's own.

`exposition` is the text format, `groups` and their modules the metric families, `reading` the
source of the values, `endpoints` the paths on the management port and on a port of their own.
"""
