"""Access control: authentication, permissions, limits and rates.

`authentication` and `passwords` check logins, `permissions` says what users may do; `limits`
and `rates` bound their usage.
"""
