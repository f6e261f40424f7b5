"""A node in memory, and who publishes to it."""

import pytest

from tests.support.client import Client
from tests.support.stage import Stage


@pytest.fixture
def stage():
    stage = Stage()
    yield stage
    assert stage.reported == []


@pytest.fixture
def publisher(stage):
    return Client(stage).open()
