"""What queues can be asked for beyond holding messages, as decisions without state or I/O."""
