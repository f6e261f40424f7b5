"""The lease: half a session from the request that was answered."""

from leveret.replication.lease import Lease


def test_a_lease_runs_for_half_a_session_from_the_request():
    lease = Lease(4_000)
    assert lease.until_ms == 0
    lease.renewed(10_000)
    assert lease.until_ms == 12_000


def test_a_session_that_is_shorter_than_was_asked_for_limits_it():
    lease = Lease(60_000)
    lease.limit(4_000)
    lease.limit(8_000)  # of another server: it is not longer here for that
    lease.renewed(10_000)
    assert lease.until_ms == 12_000


def test_an_answer_that_comes_late_does_not_shorten_it():
    lease = Lease(4_000)
    lease.renewed(10_300)
    lease.renewed(10_000)
    assert lease.until_ms == 12_300
