"""Browsing and altering of queues and their messages while in use.

`browsing` finds messages that match a `message_filter` without side effects; `moving` deletes,
copies and moves them, `editing` changes one. Called by management: nothing here is on the path of
a message.
"""
