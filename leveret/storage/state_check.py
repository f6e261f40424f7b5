"""Check of an LMDB environment, in a process that damage may kill.

    python -m leveret.storage.state_check DIRECTORY [deep | use]

Exits with status 0 if it can be read, having printed its entries about logs and definitions, one
per line: key and value, in hexadecimal. Else with 1 and the reason; LMDB does not check what it
reads, so that damaged pages may end it by a signal. No node may run. With `use`, for the node that
has it open, all of it is read and a little written, and nothing is printed.
"""

from __future__ import annotations

import sys

import lmdb

TRIAL = b"trial"  # a key that is written and removed
PREFIXES = (b"closed/", b"definitions", b"log/", b"records/", b"run")


def main(path: str, *, deep: bool) -> int:
    """Return the process's exit status; `deep` reads every entry."""
    try:
        with (
            lmdb.open(path, readonly=True, lock=False, create=False) as environment,
            environment.begin() as transaction,
        ):
            for _ in transaction.cursor() if deep else ():
                pass
            cursor = transaction.cursor()
            for prefix in PREFIXES:
                cursor.set_range(prefix)
                for key, value in cursor:
                    if not key.startswith(prefix):
                        break
                    print(key.hex(), value.hex())  # for the parent process
    except lmdb.Error as error:
        print(error)
        return 1
    return 0


def use(path: str) -> int:
    """Read all entries and write a trial one; return the process's exit status."""
    try:
        with lmdb.open(path, create=False) as environment:
            with environment.begin() as transaction:
                for _ in transaction.cursor():
                    pass
            with environment.begin(write=True) as transaction:
                transaction.put(TRIAL, b"")
                transaction.delete(TRIAL)
    except lmdb.Error:
        return 1
    return 0


if __name__ == "__main__":
    if "use" in sys.argv[2:]:
        sys.exit(use(sys.argv[1]))
    sys.exit(main(sys.argv[1], deep="deep" in sys.argv[2:]))
