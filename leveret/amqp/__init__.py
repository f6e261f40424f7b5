"""AMQP 0-9-1 on the wire: frame codec, connection and channel state machines, SASL, listeners."""
