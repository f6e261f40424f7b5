import os
import time

import pytest

from leveret.mgmt_ui.process import memory_bytes_total, read_process

MACHINE = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def test_figures_are_those_of_this_process(tmp_path):
    before = read_process(tmp_path)
    with (tmp_path / "open").open("wb"):
        after = read_process(tmp_path)
    assert after.open_files == before.open_files + 1
    assert 0 < before.open_files < before.open_files_max
    assert 1 << 20 < before.resident_bytes < MACHINE
    assert set(before.memory_bytes) == {"anonymous", "files", "shared"}
    assert sum(before.memory_bytes.values()) == pytest.approx(before.resident_bytes, rel=0.2)
    assert before.disk_free_bytes > 0


def test_time_goes_on(tmp_path):
    before = read_process(tmp_path)
    until = time.monotonic() + 0.1
    while time.monotonic() < until:
        pass
    after = read_process(tmp_path)
    assert after.uptime_seconds - before.uptime_seconds > 0.09
    assert after.cpu_seconds > before.cpu_seconds


@pytest.fixture
def group(tmp_path):
    """Return the control group of a process and the memory that it allows."""
    (tmp_path / "cgroup").write_text("1:name=systemd:/\n0::/slice/unit\n")
    unit = tmp_path / "groups" / "slice" / "unit"
    unit.mkdir(parents=True)

    def total():
        return memory_bytes_total(tmp_path / "cgroup", tmp_path / "groups")

    return unit, total


def test_memory_is_the_machines_where_nothing_limits_it(group, tmp_path):
    unit, total = group
    assert total() == MACHINE
    (unit / "memory.max").write_text("max\n")
    assert total() == MACHINE
    assert memory_bytes_total(tmp_path / "missing", tmp_path) == MACHINE


def test_memory_is_what_the_narrowest_group_leaves(group):
    unit, total = group
    (unit / "memory.max").write_text("1000000\n")
    (unit.parent / "memory.max").write_text("2000000\n")
    assert total() == 1_000_000
    (unit.parent.parent / "memory.max").write_text("3000\n")
    assert total() == 3000
    (unit / "memory.max").write_text(f"{MACHINE * 2}\n")
    assert total() == 3000
