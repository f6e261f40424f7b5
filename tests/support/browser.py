"""A browser without a screen: keeps cookies, reads forms, sends them back."""

import re
from html import unescape

from tests.support.http import in_process_client

TOKEN = re.compile(r'name="csrf_token" value="([^"]+)"')


def without_tokens(page):
    """A page without its tokens: random letters may hold a short word that a test looks for."""
    for token in set(TOKEN.findall(page)):
        page = page.replace(token, "")
    return page


class Browser:
    """Looks at the pages of a Site, from an address of its own."""

    def __init__(self, site, peer="127.0.0.1", base_url="http://node"):
        self.client = in_process_client(site.app, peer, base_url)
        self.token = ""

    async def sign_in(self, user="guest"):
        """The password of each user is its name."""
        answer = await self.submit("/login", user=user, password=user)
        if answer.status_code == 303:
            page = await self.get("/overview")
            self.token = unescape(TOKEN.search(page.text)[1])
        return answer

    async def get(self, path, **headers):
        return await self.client.get(
            path, headers={name.replace("_", "-"): value for name, value in headers.items()}
        )

    async def text(self, path):
        """A page that is there, without tokens."""
        answer = await self.get(path)
        assert answer.status_code == 200, (answer.status_code, answer.text)
        return without_tokens(answer.text)

    async def submit(self, path, headers=None, **fields):
        """Send a form as the page had it, with its token."""
        return await self.client.post(
            path, data={"csrf_token": self.token, **fields}, headers=headers
        )

    async def notices(self, path="/overview"):
        """Return the notices of the next page."""
        found = re.findall(r'<p class="notice[^>]*>([^<]*)</p>', await self.text(path))
        return [unescape(text) for text in found]
