"""Rate limits on publishing and consuming.

`rules` has the token bucket, `rates` the limits of users, virtual hosts, connections and queues.
"""
