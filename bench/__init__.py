"""Compares Leveret with RabbitMQ on this machine, in one run: `python -m bench --help`."""
