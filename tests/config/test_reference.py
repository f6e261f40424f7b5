import tomllib
from pathlib import Path

import pytest

from leveret.config import Configuration
from leveret.config.reference import sample_file, settings_page

DOCS = Path(__file__).parent.parent.parent / "docs"


@pytest.mark.parametrize(
    ("name", "make"), [("settings.md", settings_page), ("leveret.toml", sample_file)]
)
def test_reference_is_as_the_settings_are(name, make):
    assert (DOCS / name).read_text() == make(), "write it anew with `make docs`"


def test_every_setting_is_in_the_reference():
    page = settings_page()
    assert all(f"| `{name}`<br>" in page for name in Configuration.model_fields)


def test_sample_says_the_defaults():
    text = "\n".join(
        line.removeprefix("#")
        for line in sample_file().splitlines()
        if line.startswith("#") and not line.startswith("# ") and not line.endswith('= "…"')
    )
    values = tomllib.loads(text)
    assert Configuration(**values) == Configuration()
    assert len(values) > 70
