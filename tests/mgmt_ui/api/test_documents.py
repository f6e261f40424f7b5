"""The API's description of itself."""

import re

import pytest

from tests.mgmt_ui.api.test_rights import OPEN, ROUTES, right
from tests.support.site import Site


@pytest.fixture(scope="module")
def site():
    return Site()


async def test_every_route_is_described(site):
    described = (await site.get("/api/openapi.json", None)).json()
    found = {
        (method.upper(), path)
        for path, operations in described["paths"].items()
        for method in operations
    }
    unsaid = set(ROUTES) - found
    assert {path for _, path in unsaid} <= {
        "/api/openapi.json",
        "/api/docs",
        "/api/docs/style.css",
        "/api/all-configuration",
        "/api/users/without-permissions/",
    }
    operations = [
        (method.upper(), path, operation)
        for path, held in described["paths"].items()
        for method, operation in held.items()
    ]
    names = [operation["operationId"] for _, _, operation in operations]
    assert len(set(names)) == len(names)
    for method, path, operation in operations:
        assert operation["description"], path
        assert (operation.get("security") == []) == (right(method, path) == OPEN), path


async def test_lists_say_how_they_can_be_asked(site):
    described = (await site.get("/api/openapi.json", None)).json()
    parameters = described["paths"]["/api/queues"]["get"]["parameters"]
    assert {"page", "page_size", "name", "sort", "columns"} <= {each["name"] for each in parameters}
    body = described["paths"]["/api/users/{name}"]["put"]["requestBody"]
    assert body["content"]["application/json"]["schema"]["required"] == ["tags"]


async def test_the_page_needs_no_other_host_and_no_script(site):
    page = await site.get("/api/docs", None)
    assert page.headers["content-security-policy"].startswith("default-src 'none'")
    assert set(re.findall(r'(?:src|href)="?([^">]*)', page.text)) == {
        "/api/docs/style.css",
        "/api/openapi.json",
    }
    assert "<script" not in page.text
    assert "/api/queues/{vhost}/{name}/get" in page.text
    style = await site.get("/api/docs/style.css", None)
    assert style.headers["content-type"].startswith("text/css")
