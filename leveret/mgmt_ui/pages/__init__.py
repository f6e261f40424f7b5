"""The web UI: pages made on the server, for people.

`application` puts the parts together. A page is a module with a `router`: it reads the broker for
its `Viewer`, and renders a template. What it changes it changes by an operation (`acting`). Beside
the pages:

- `viewing` says who looks, `signing_in` lets people in and out, `forms` reads what they send;
- `rendering` and `formats` make HTML of values, `tables` and `charts` of many of them;
- `live` sends figures while a page is looked at, `assets` the files that pages need;
- `navigation` lists what there is, `problems` says what went wrong.

Names, headers and bodies come from strangers: templates escape everything, links are made by
`formats.path`, and the policy that `security` sends lets no script run but our own files.
"""
