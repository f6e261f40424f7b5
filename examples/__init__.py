"""Applications to look at and to begin with."""
