"""What an administrator asks of a node: requests by name, and what each of them does.

`dispatcher` checks a request and answers it, `context` is what the requests work on; each of
the others is a family of requests. The control socket and the command line perform them alike.
"""
