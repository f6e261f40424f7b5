"""Mistakes planted in the copying of logs on purpose: the scenarios must find each of them.

Two more take longer scenarios than these to be found: test_replica_log has tests of their own.
"""

import logging

import pytest

from leveret.errors import LeveretError
from leveret.storage.index import OFFSET_MAX
from leveret.storage.log import PartitionLog
from leveret.storage.replica_log import ReplicaLog
from leveret.storage.segments import Segments
from tests.storage.test_replica_log import Scenario

SEEDS = 300


def commits_without_the_others(patch):
    patch.setattr(
        ReplicaLog, "limit_commit", lambda log, _: setattr(log, "_commit_limit", OFFSET_MAX)
    )


def counts_what_is_not_flushed(patch):
    patch.setattr(ReplicaLog, "durable", property(lambda log: log.end))


def forgets_a_decision_before_the_others_know(patch):
    def remembered(log, transaction):
        log._services.decisions.remembered(transaction)

    patch.setattr(ReplicaLog, "_remembered", remembered)


def does_not_copy_what_became_of_records(patch):
    take = ReplicaLog._take_control
    is_copied = lambda batch: batch.payload[0] not in (1, 3, 5, 6)  # noqa: E731
    patch.setattr(
        ReplicaLog, "_take_control", lambda log, each: take(log, each) if is_copied(each) else []
    )


def does_not_write_what_became_of_records(patch):
    write = PartitionLog._write_control
    patch.setattr(
        PartitionLog,
        "_write_control",
        lambda log, payload: None if log.follows else write(log, payload),
    )


def keeps_transactions_that_are_resolved(patch):
    patch.setattr(ReplicaLog, "_merge_parts", lambda *_: False)


def keeps_settlements_of_what_was_truncated(patch):
    patch.setattr(ReplicaLog, "_forget_behind", lambda log, end: log.epochs.truncate(end))


def keeps_epochs_of_what_was_truncated(patch):
    forget = ReplicaLog._forget_behind

    def forget_but_epochs(log, end):
        epochs = list(log.epochs)
        forget(log, end)
        for epoch, first in epochs:
            log.epochs.add(epoch, first)

    patch.setattr(ReplicaLog, "_forget_behind", forget_but_epochs)


def truncates_a_batch_too_late(patch):
    find = ReplicaLog._find_batch
    patch.setattr(ReplicaLog, "_find_batch", lambda log, offset: find(log, offset + 1))


def leaves_files_that_were_truncated(patch):
    patch.setattr(Segments, "drop", lambda *_: None)


def takes_batches_of_any_place(patch):
    take = ReplicaLog._take_records

    def take_anywhere(log, batch, epoch):
        if batch.base_offset > log.end:
            log._skip_to(batch.base_offset, log.epochs)
        take(log, batch, epoch)

    patch.setattr(ReplicaLog, "_take_records", take_anywhere)
    patch.setattr(
        Segments, "in_stream", lambda segments, position: (segments.active, 0) if position else None
    )


def loses_the_checkpoint_of_a_segment(patch):
    patch.setattr(ReplicaLog, "_merge_returns", lambda *_: False)
    patch.setattr(ReplicaLog, "_skip_to", lambda *_: None)


FAULTS = [
    commits_without_the_others,
    counts_what_is_not_flushed,
    forgets_a_decision_before_the_others_know,
    does_not_copy_what_became_of_records,
    does_not_write_what_became_of_records,
    keeps_transactions_that_are_resolved,
    keeps_settlements_of_what_was_truncated,
    keeps_epochs_of_what_was_truncated,
    truncates_a_batch_too_late,
    leaves_files_that_were_truncated,
    takes_batches_of_any_place,
    loses_the_checkpoint_of_a_segment,
]


@pytest.mark.parametrize("fault", FAULTS)
def test_a_planted_fault_is_found(fault, monkeypatch):
    logging.disable(logging.CRITICAL)
    fault(monkeypatch)
    try:
        for seed in range(SEEDS):
            scenario = Scenario(seed)
            try:
                scenario.run()
            except (AssertionError, LeveretError, KeyError, ValueError, IndexError, ExceptionGroup):
                return
            finally:
                scenario.pair.end()
    finally:
        logging.disable(logging.NOTSET)
    pytest.fail(f"{SEEDS} seeds do not find it")
