"""What an operator does to queues and their messages while they are in use.

`browsing` finds the messages that `criteria` describe without touching them; `moving` deletes,
copies and moves them, `editing` changes one. Called by management: nothing here is on the way of a
message.
"""
