"""Of the process's open files, clients and logs leave some to operators."""

from __future__ import annotations

import pytest

from leveret.config import Configuration
from leveret.node.open_files import HELD_BACK, share_open_files


@pytest.mark.parametrize("files_max", [64, 256, 1024, 4096, 20_000, 70_000, 1 << 20, 1 << 30])
def test_all_shares_together_leave_some_files(files_max):
    shared = share_open_files(Configuration(), files_max)
    taken = shared.connections_max + shared.open_segments_max
    assert files_max - taken >= min(HELD_BACK, files_max // 4)
    assert shared.connections_max >= 16
    assert shared.open_segments_max >= 16


def test_settings_that_fit_stay_as_they_are(caplog):
    configuration = Configuration(connections_max=100, open_segments_max=50)
    assert share_open_files(configuration, 20_000) == configuration
    assert not caplog.records


def test_lower_limit_is_told(caplog):
    caplog.set_level("INFO")
    share_open_files(Configuration(), 20_000)
    (record,) = caplog.records
    assert "14880 connections at most, not 65536" in record.getMessage()
