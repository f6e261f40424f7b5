"""The web UI: pages rendered on the server.

`application` assembles it. A page is a module with a `router`: it reads the broker for its
`Viewer`, and renders a template. Changes are made by operations. Other modules:

- `viewing` authenticates the user, `signing_in` opens and ends sessions, `forms` parses forms;
- `rendering` and `formats` turn values into HTML, `tables` and `charts` show lists and series;
- `live` sends figures while a page is open, `assets` the files that pages need;
- `navigation` is the menu, `problems` has the error pages.

Names, headers and bodies are untrusted: templates escape everything, links are made by
`formats.path`, and the content security policy of `application` allows only scripts from our own
files.
"""
