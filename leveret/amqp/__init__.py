"""The wire: frame codec, connection and channel machines, SASL, listeners."""
