"""Leveret: an AMQP 0-9-1 broker whose queues are logs."""

__version__ = "0.1.0"
