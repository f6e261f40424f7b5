"""Fixtures for all tests of the pages."""

import pytest

from tests.support.browser import Browser
from tests.support.site import Site


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
