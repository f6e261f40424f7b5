"""Administrative operations: requests by name.

`dispatcher` checks and dispatches requests, `context` is what they work on; each of the others
is a family of operations on no single feature: those on features are in leveret.features. The
control socket, the command line and the HTTP API use them.
"""
