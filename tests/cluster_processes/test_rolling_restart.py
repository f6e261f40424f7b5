"""All nodes are restarted in turn under load, as an upgrade does: clients lose nothing by it."""

from __future__ import annotations

import pytest

from tests.cluster_processes.faults import under_load
from tests.cluster_processes.test_faults import make_cluster, make_seed


@pytest.mark.timeout(600)
def test_a_rolling_restart_loses_nothing_and_keeps_the_order(tmp_path):
    with under_load(make_cluster(tmp_path), make_seed()) as rounds:
        rounds.roll()
        rounds.finish()
