"""De-duplication windows, idempotent producers, prepared messages.

`dedup…` are the windows of queues and exchanges, `producers` the positions of numbering publishers,
`prepared…` stores prepared messages until they are decided. `sending_once` combines them for a
broker, `operations` are the administrator's operations on them.
"""
