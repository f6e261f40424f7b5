from leveret.perf.board import RunPhase, Totals
from leveret.perf.client import WorkerResult
from leveret.perf.conductor import Moment, _rate, _verification
from leveret.perf.plan import LoadPlan
from leveret.perf.process import ProcessUsage
from leveret.perf.report import ProgressLine, table
from leveret.perf.result import Latency, Result, Verification

from .streams import make_board

SECOND = 10**9


def moment(at_s, cpu_us=0, **totals):
    return Moment(
        at_s * SECOND, Totals(**totals), ProcessUsage(cpu_us, 50_000_000), ProcessUsage(0, 0)
    )


def worker_result(sent, received, duplicates=0):
    return WorkerResult(b"", b"", sent, received, duplicates, 0)


def test_totals_add_counts_and_take_the_latest_time():
    board = make_board(2)
    board.row(0).cast("Q")[0], board.row(1).cast("Q")[0] = 3, 4
    board.row(0).cast("Q")[8], board.row(1).cast("Q")[8] = 30, 20
    board.count_blocked(1)
    totals = board.totals(2)
    assert (totals.published, totals.published_at_ns, totals.blocked) == (7, 30, 1)


def test_rates_end_with_the_last_message():
    first = moment(10, consumed=100)
    last = moment(30, consumed=1100, consumed_at_ns=20 * SECOND)
    assert _rate(first, last, "consumed") == 100
    assert _rate(first, last, "published") == 0


def test_verification_adds_up_what_processes_saw():
    plan = LoadPlan(publishers=2, queues=1, verify=True)
    results = [
        worker_result({0: {0: 10}}, {0: [(0, 4)]}),
        worker_result({1: {0: 5}}, {0: [(4, 10)], 1: [(0, 5)]}),
    ]
    assert _verification(plan, results) == Verification(0, 0, 0)
    results[1] = worker_result({1: {0: 5}}, {0: [(3, 9)], 1: [(0, 1)]}, duplicates=2)
    assert _verification(plan, results) == Verification(5, 3, 0)


def test_every_copy_of_a_fanout_is_expected():
    plan = LoadPlan(fanout=2, verify=True)
    seen = _verification(plan, [worker_result({0: {0: 10}}, {0: [(0, 10)]})])
    assert (seen.missing, seen.clean) == (10, False)


def test_progress_shows_rates_since_the_moment_before():
    progress = ProgressLine()
    assert progress.line(moment(1), RunPhase.RUN) == "run"
    line = progress.line(moment(3, cpu_us=1_000_000, published=3000, consumed=1000), RunPhase.DRAIN)
    assert line == "drain  1,500/s published   500/s consumed   broker 50 %, 50 MB"


def test_the_table_shows_what_was_measured_and_nothing_else():
    result = Result(
        seconds=2,
        consumed_per_s=1234,
        consumed_total=2468,
        complete=False,
        latency=Latency(1, {"p50": 1.5}),
        verification=Verification(1, 0, 0),
    )
    names = list(table(result).columns[0].cells)
    assert names == ["consumed", "publish to consume, ms", "verification", "incomplete"]
    assert not result.ok
    assert result.as_json()["verification"] == {"missing": 1, "duplicates": 0, "foreign": 0}
