"""Optional features of queues and messages, as pure decisions without state or I/O."""
