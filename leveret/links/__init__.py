"""Links between the nodes of a cluster: requests, one-way messages and streams over TCP or TLS.

    Links ── Peer ── DialedLink ─┐                            ┌─ AcceptedLink ── handlers
      │       └ CircuitBreaker   ├─ LinkSocket ═══ TCP ═══ LinkSocket
      └ accepts                  │     ├ handshake: versions, secret, who is who
                                 │     ├ LinkMachine: requests, streams, credit
                                 │     │   ├ LinkFrameReader: bytes become frames, and messages
                                 │     │   └ Outgoing: small ones first, large ones in fragments
                                 │     └ Heartbeats

A node dials each peer from which it wants something; what it wants and what it gets travel on that
connection (docs/decisions/0059). `frames`, `outgoing`, `machine`, `handshake`, `heartbeats` and
`breaker` are machines without I/O: bytes and time are their arguments.
"""
