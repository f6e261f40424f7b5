"""Clients of a cluster whose nodes fail: programs of their own, and the account of what they saw.

Each client has a journal, a file of lines: TIME EVENT PUBLISHER NUMBER [MORE]. A message is sent
once, whatever becomes of it. A program goes on until its standard input ends.
"""
