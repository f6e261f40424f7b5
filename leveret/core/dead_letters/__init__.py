"""Dead letters: what queues give up, on its way elsewhere, and back again.

`worker` gathers it, `dead_lettering` says where it goes, `packing` writes the records, `topics`
are the queues made for it, `publish` sees to those that must arrive. `scan` looks at them,
`redrive` moves them back.
"""
