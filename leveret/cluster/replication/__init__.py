"""Machines of one replica of a partition: the leader's, and a follower's.

    follower ── Fetch(epoch, end, last epoch, durable) ──► leader
             ◄─ Records(from, committed) ─────────────────   its log is a prefix of the leader's
             ◄─ Diverged(epoch, end) ─────────────────────   it is to be truncated first
             ◄─ Refused(epoch) ───────────────────────────   one of them lives in an older epoch

Logs are byte for byte the same below the committed offset. The machines know offsets and epochs;
whoever drives them moves the bytes (docs/decisions/0057).
"""
