"""Small faults planted in a copy of the tree, one by one: the tests must notice each of them."""
