from pathlib import Path

import pytest

from leveret.config import ConfigurationError, load_configuration


def toml(tmp_path: Path, text: str) -> Path:
    file = tmp_path / "leveret.toml"
    file.write_text(text)
    return file


def test_command_line_beats_environment_beats_file_beats_default(tmp_path, monkeypatch):
    file = toml(tmp_path, "port = 1\nhttp_port = 1\nchannel_max = 1\n")
    monkeypatch.setenv("LEVERET_PORT", "2")
    monkeypatch.setenv("LEVERET_HTTP_PORT", "2")
    configuration = load_configuration(file, {"port": 3, "host": None})
    assert configuration.port == 3
    assert configuration.http_port == 2
    assert configuration.channel_max == 1
    assert configuration.host == "127.0.0.1"


def test_unknown_key_in_the_file_names_it_and_what_was_meant(tmp_path):
    with pytest.raises(
        ConfigurationError, match=r"leveret\.toml: unknown setting 'frame_maxx'; did you mean"
    ):
        load_configuration(toml(tmp_path, "frame_maxx = 4096\n"))


def test_file_that_is_not_toml(tmp_path):
    with pytest.raises(ConfigurationError, match="is not TOML"):
        load_configuration(toml(tmp_path, "port 5"))


def test_missing_file(tmp_path):
    with pytest.raises(ConfigurationError, match="cannot read"):
        load_configuration(tmp_path / "none.toml")


@pytest.mark.parametrize(
    ("key", "value"),
    [("port", 70000), ("durability", "none"), ("durability", "maybe"), ("frame_max", 100)],
)
def test_impossible_value_names_the_setting(key, value):
    with pytest.raises(ConfigurationError, match=f"setting '{key}'"):
        load_configuration(overrides={key: value})
