"""Generated attacks on a whole node, and what its other clients and its memory may feel of them."""
