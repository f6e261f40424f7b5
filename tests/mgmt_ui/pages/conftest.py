"""Fixtures for all tests of the pages."""

import pytest

from tests.support.browser import Browser
from tests.support.site import Site
from tests.support.visitor import Visitor


@pytest.fixture
def site():
    return Site()


@pytest.fixture
def browser(site):
    """Return a visitor who has not signed in."""
    return Browser(site)


@pytest.fixture
async def guest(browser):
    """An administrator who has signed in."""
    await browser.sign_in()
    return browser


@pytest.fixture
def visitor(live_site):
    """An administrator who does not await."""
    with Visitor(live_site) as visitor:
        yield visitor
