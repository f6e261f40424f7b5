import pytest
from pydantic import ValidationError

from leveret.config import Configuration
from leveret.config.settings import Settings
from leveret.ports import Durability


def test_defaults_are_those_the_documentation_names():
    configuration = Configuration()
    assert (configuration.host, configuration.port, configuration.http_port) == (
        "127.0.0.1",
        5672,
        15672,
    )
    assert configuration.durability is Durability.FSYNC
    assert configuration.loopback_users == ("guest",)
    assert (configuration.frame_max, configuration.channel_max) == (131072, 2047)


def test_every_setting_says_what_it_is_for():
    for name, field in Configuration.model_fields.items():
        assert field.description, name


def test_every_setting_belongs_to_one_group():
    groups = [base for base in Configuration.__mro__ if issubclass(base, Settings)]
    named = [name for group in groups for name in group.__annotations__]
    assert sorted(named) == sorted(Configuration.model_fields)


def test_arguments_alone_ignore_the_environment(monkeypatch):
    monkeypatch.setenv("LEVERET_PORT", "1")
    assert Configuration().port == 5672


def test_configuration_is_frozen():
    with pytest.raises(ValidationError):
        Configuration().port = 1
