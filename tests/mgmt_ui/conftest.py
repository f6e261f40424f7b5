"""Fixtures for all tests of the HTTP API and the pages."""

import pytest

from tests.support.site import running_site


@pytest.fixture
def live_site(tmp_path):
    """Return a site that works on when clients ask that do not await."""
    with running_site(tmp_path) as site:
        yield site


@pytest.fixture
def http(live_site):
    """The HTTP API, for an administrator who does not await."""
    with live_site.http_client("/api") as client:
        yield client
