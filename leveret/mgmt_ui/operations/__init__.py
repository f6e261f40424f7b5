"""Administrative operations: requests by name.

`performing` checks and dispatches requests, `context` is what they work on; each of the others
is a family of operations. The control socket, the command line and the HTTP API use them.
"""
