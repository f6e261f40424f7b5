"""State that the nodes of a cluster agree on: a sequence of changes, and snapshots of it.

    head ───► number of the last batch of changes; snapshot: number, chunks
    changes ► … 41 │ 42 │ 43          a batch each: what one write, or several together, changed
    snapshot ► chunk 0 │ 1 │ 2 │ …    all entries as of one number

Nodes read the snapshot and the changes behind it, and then follow the changes. Plain functions of
their arguments; nothing that is read is trusted (docs/decisions/0058).
"""
