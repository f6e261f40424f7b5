"""How people look at a node and change it."""
