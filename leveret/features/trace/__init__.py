"""The steps of one message, told from its record and its headers."""
