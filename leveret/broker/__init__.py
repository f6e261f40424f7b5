"""The broker of one node: joins the core and the features, without sockets and files.

`broker` is their composition, `settings` its limits. `alter_queue` changes queues in use,
`usage_keeping` stores their usage.
"""
