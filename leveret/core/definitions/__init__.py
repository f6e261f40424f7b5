"""What a broker was told to keep: users, virtual hosts, permissions, policies, parameters.

`administration` changes them, `document` and `fields` write and read them as JSON, `importing`
takes a document in, rehearsed on a `model` first. `policies` choose settings by name;
`policy_settings` lists those there are, `well_formed` says what may be written.
"""
