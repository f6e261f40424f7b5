"""Visitor with a browser who does not await: signs in, reads pages, sends their forms."""

import re
from html import unescape

from tests.support.browser import TOKEN, without_tokens


class Visitor:
    """At a process or a site that runs; `api` is the same user, whose password is its name."""

    def __init__(self, node, user="guest"):
        self.client = node.http_client(user=None)
        self.api = node.http_client("/api", user)
        answer = self.client.post("/login", data={"user": user, "password": user})
        assert answer.status_code == 303, answer.text
        self.token = unescape(TOKEN.search(self._page("/overview"))[1])

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.client.close()
        self.api.close()

    def text(self, path):
        """A page that is there, without tokens."""
        return without_tokens(self._page(path))

    def _page(self, path):
        answer = self.client.get(path)
        assert answer.status_code == 200, (path, answer.status_code, answer.text)
        return answer.text

    def submit(self, path, **fields):
        """Send a form; the answer, without following it."""
        return self.client.post(path, data={"csrf_token": self.token, **fields})

    def done(self, path, **fields):
        """Send a form that leads to a page; what that says of what was done."""
        answer = self.submit(path, **fields)
        assert answer.status_code == 303, (answer.status_code, answer.text)
        text = self.text(answer.headers["location"])
        return [unescape(each) for each in re.findall(r'<p class="notice[^>]*>([^<]*)</p>', text)]

    def publish(self, key, body, exchange="amq.default", **properties):
        """By the HTTP API."""
        asked = {
            "properties": properties,
            "routing_key": key,
            "payload": body,
            "payload_encoding": "string",
        }
        answer = self.api.post(f"/exchanges/%2F/{exchange}/publish", json=asked)
        assert answer.json() == {"routed": True}, answer.text

    def declare(self, name, **arguments):
        """A queue that is empty."""
        asked = {"durable": True, "arguments": arguments}
        assert self.api.put(f"/queues/%2F/{name}", json=asked).status_code == 201
