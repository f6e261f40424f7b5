"""Of the process's open files, clients and logs leave some to operators."""

from __future__ import annotations

import pytest

from leveret.config import Configuration
from leveret.node.open_files import HELD_BACK, passed_clients_max, share_open_files


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


@pytest.mark.parametrize("files_max", [64, 256, 1024, 4096, 20_000, 70_000, 1 << 20, 1 << 30])
def test_a_client_that_is_passed_on_has_two_of_the_files(files_max):
    shared = share_open_files(Configuration(), files_max)
    clients = passed_clients_max(shared, files_max)
    assert 8 <= clients <= shared.connections_max
    taken = 2 * clients + shared.open_segments_max
    assert files_max - taken >= min(HELD_BACK, files_max // 4)


def test_who_passes_on_has_as_many_clients_as_are_configured_where_they_fit():
    assert passed_clients_max(share_open_files(Configuration(), 20_000), 20_000) == 7_440
    assert passed_clients_max(Configuration(connections_max=100), 20_000) == 100
