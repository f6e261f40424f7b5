"""Walks of the simulator, each drawn from its seed.

python -m tests.replication.test_walks 2000 10000     other seeds than those of `make test`
"""

import sys

import pytest

from tests.replication.walks import Walk

SEEDS = 2_000
GROUPS = 20  # so that they are spread over the processes of the tests


@pytest.mark.parametrize("group", range(GROUPS))
def test_random_walks_break_nothing(group):
    for seed in range(group, SEEDS, GROUPS):
        Walk(seed).run()


if __name__ == "__main__":
    for seed in range(int(sys.argv[1]), int(sys.argv[2])):
        Walk(seed).run()
