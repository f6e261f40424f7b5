"""Definitions that a broker stores: users, virtual hosts, permissions, policies, parameters.

`administration` changes them, `document` and `fields` write and read them as JSON, `importing`
imports a document, rehearsed on a `model` first. `policies` choose settings by resource name;
`policy_settings` lists the settings, `well_formed` validates names, tags and limits.
"""
