"""Access control: authentication, permissions and limits.

`authentication` and `passwords` check logins, `permissions` says what users may do; `limits`
bound their usage.
"""
