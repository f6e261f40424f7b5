"""Looks at an LMDB environment, in a process that may die of what it finds.

    python -m leveret.storage.state_check DIRECTORY [deep]

Ends with status 0 where it can be read, else with 1 and the reason; LMDB does not check what it
reads, so that damaged pages may end it by a signal. No node may run.
"""

from __future__ import annotations

import sys

import lmdb


def main(path: str, *, deep: bool) -> int:
    """The status of the process; `deep` goes over every entry."""
    try:
        with (
            lmdb.open(path, readonly=True, lock=False, create=False) as environment,
            environment.begin() as transaction,
        ):
            for _ in transaction.cursor() if deep else ():
                pass
    except lmdb.Error as error:
        print(error)  # for whoever has started it
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], deep="deep" in sys.argv[2:]))
