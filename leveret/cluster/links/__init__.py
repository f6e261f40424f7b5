"""Links between the nodes of a cluster: authenticated connections that carry frames.

`Links` is the way in. Frames are handed on as they come; what is in them is for others to say.

    handshake  who is at the other end, and that both know the cluster's secret; machines
    link       one connection: frames, keepalives, its one end
    connector  keeps a link open to the node that is wanted
    links      all links of a node, to others and from others
"""
