"""Definitions that a broker stores: users, virtual hosts, permissions, policies, parameters.

`administration` changes them, `document` and `fields` write and read them as JSON, `importing`
imports a document, rehearsed on a `model` first. `validation` checks names, tags and limits.
"""
