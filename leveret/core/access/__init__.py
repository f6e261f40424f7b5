"""Who may do what, and how much of it, and how fast.

`authentication` and `passwords` let users in, `permissions` says what they may do there; `limits`
and `rates` bound what they use.
"""
