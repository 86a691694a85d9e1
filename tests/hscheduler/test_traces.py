"""Workloads from traces of real clusters."""

from __future__ import annotations

import gzip
import time
from itertools import pairwise
from pathlib import Path

import pytest

from eps.cli.exits import EXIT_BAD_INPUT
from eps.errors import DataError
from hscheduler import cli
from hscheduler.core.resources import Resources
from hscheduler.simulator.run import simulate_jobs
from hscheduler.simulator.traces import ITERATIONS, TraceJob, read_philly, workload
from hscheduler.spec import Spec

HEAD = "timestamp,duration,num_gpus,gpu_time,cluster\n"
UNIT = Resources(1, 4096)


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    path = tmp_path / "trace.csv"
    rows = ["2017-10-09 07:01:40,100.0,2,1,a", "2017-10-09 07:00:00,50.0,1,1,a", "2017-10-09 07:00:30,0.0,1,1,a"]
    path.write_text(HEAD + "\n".join(rows) + "\n")
    return path


def test_arrivals_are_sorted_and_begin_at_0(trace):
    assert read_philly(trace) == [TraceJob(0.0, 50.0, 1, "a"), TraceJob(100.0, 100.0, 2, "a")]


def test_a_trace_is_the_same_in_every_time_zone(tmp_path, monkeypatch):
    path = tmp_path / "trace.csv"
    path.write_text(HEAD + "2017-11-05 00:30:00,50.0,1,1,a\n2017-11-05 03:30:00,50.0,1,1,a\n")
    try:
        # One hour occurs twice in that period.
        monkeypatch.setenv("TZ", "America/Los_Angeles")
        time.tzset()
        assert [job.arrives_s for job in read_philly(path)] == [0.0, 3 * 3600.0]
    finally:
        monkeypatch.undo()
        time.tzset()


def test_a_job_of_its_own_size_takes_as_long_as_in_the_trace():
    for devices in (1, 3, 8):
        (job,) = workload([TraceJob(0.0, 500.0, devices, "a")], UNIT, 0)
        size = job.request.workers, job.request.servers
        assert size == (devices, -(-devices // 2))
        assert job.iterations * job.speed.iteration_s(*size) == pytest.approx(500.0)
        twice = job.speed.iteration_s(2 * devices, job.request.servers)
        assert ITERATIONS * twice == pytest.approx(250.0)


def test_bursts_of_similar_jobs_are_sweeps():
    jobs = [
        TraceJob(0.0, 1.0, 1, "a"),
        TraceJob(50.0, 1.0, 1, "a"),
        TraceJob(60.0, 1.0, 4, "a"),
        TraceJob(70.0, 1.0, 1, "b"),
        TraceJob(109.0, 1.0, 1, "a"),
        TraceJob(170.0, 1.0, 1, "a"),
    ]
    sweeps = [job.request.sweep for job in workload(jobs, UNIT, 0)]
    assert sweeps[0] == sweeps[1] == sweeps[4]
    assert len({sweeps[0], sweeps[2], sweeps[3], sweeps[5]}) == 4


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a,b\n1,2\n", "line 1: no column 'timestamp'; expected timestamp, duration"),
        (HEAD + "2017-10-09 07:00:00,50.0,1,1,a\nyesterday,5,1,1,a\n", "line 3: not a job"),
        (HEAD + "2017-10-09 07:00:00,50.0,one,1,a\n", "line 2: not a job"),
        (HEAD, "no jobs"),
    ],
)
def test_an_invalid_trace_is_refused(tmp_path, text, message):
    path = tmp_path / "trace.csv.gz"
    path.write_bytes(gzip.compress(text.encode()))
    with pytest.raises(DataError, match=message) as raised:
        read_philly(path)
    assert str(path) in str(raised.value)
    with pytest.raises(DataError, match="No such file"):
        read_philly(tmp_path / "no.csv")


def test_the_command_plays_a_trace(trace, capsys):
    assert cli.main(["simulate", "--trace", str(trace), "--policy", "elastic,static"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == 2 * ["policy", "elastic", "static"]
    assert cli.main(["simulate"]) == 2
    assert "nothing to simulate" in capsys.readouterr().err


def jobs_of(spec, jobs):
    return list(workload(jobs, spec.cluster.container(), spec.sweep.seed, spec.cluster.master()))


def test_philly_under_elastic_and_static(shared_data):
    """The first 400 jobs, on 24 nodes: the shape of EPS Figs 16 and 17, with recorded arrivals."""
    jobs = read_philly(shared_data / "job_traces" / "philly_2017" / "philly.csv.gz")
    assert len(jobs) > 80_000
    assert all(earlier.arrives_s <= later.arrives_s for earlier, later in pairwise(jobs))
    spec = Spec.of({"cluster": {"nodes": 24}, "sweep": {"threshold": 8}})
    elastic, static = (simulate_jobs(spec, jobs_of(spec, jobs[:400]), policy) for policy in ("elastic", "static"))
    for found in (elastic, static):
        assert found["resources"] == {"leaked": 0}
        assert len(found["trials"]) == 400
    assert elastic["summary"]["queueing_mean_s"] <= static["summary"]["queueing_mean_s"]
    assert elastic["summary"]["early_feedback_mean_s"] <= static["summary"]["early_feedback_mean_s"]
    assert elastic["utilisation"] > 0


def test_released_containers_are_not_idle_behind_a_large_job():
    """Four short jobs take all that the first can give.  The job behind them fits only when the first has ended."""
    short = [TraceJob(200.0 + number, 300.0, 1, f"short{number}") for number in range(4)]
    jobs = [TraceJob(0.0, 1000.0, 8, "first"), *short, TraceJob(300.0, 100.0, 9, "large")]
    found = {policy: simulate_jobs(Spec(), jobs_of(Spec(), jobs), policy) for policy in ("elastic", "static")}
    assert [report["completed"] for report in found.values()] == [6, 6]
    # With one worker the first would take 7,000 s.
    assert found["elastic"]["makespan_s"] < 1.2 * found["static"]["makespan_s"]


def test_the_command_refuses_a_file_that_is_no_trace_as_bad_input(tmp_path, capsys):
    path = tmp_path / "trace.csv"
    path.write_text("when,how long\n1,2\n")
    assert cli.main(["simulate", "--trace", str(path)]) == EXIT_BAD_INPUT
    assert f"{path}, line 1: no column 'timestamp'" in capsys.readouterr().err
