"""Staged batches: messages that several processes upload, and one of them publishes, all or none.

`chunk_rows` checks and packs what is uploaded, `records` draws what is stored of it, `book` knows
parts and writers, `staged` stores them, `batch_commit` publishes a batch by atomic writes,
`batches` is all of that for a node.
"""
