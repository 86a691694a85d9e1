"""Workloads of Pollux: jobs derived from measurements, and the workloads themselves if they are installed."""

from __future__ import annotations

import pytest

from eps.errors import DataError
from hscheduler import cli
from hscheduler.core.resources import Resources
from hscheduler.simulator.pollux import read_application, read_pollux
from hscheduler.simulator.run import simulate_jobs
from hscheduler.spec import Spec

UNIT = Resources(1, 4096)


@pytest.fixture
def workload(tmp_path):
    """Ten samples of a replica take 1 s, a step 0.5 s, each replica 0.25 s; 1,000 steps of 8, or 500 of 16."""
    folder = tmp_path / "traces" / "net"
    folder.mkdir(parents=True)
    step_s = {(n, size): 0.5 + 0.1 * size + 0.25 * n for n in (1, 2, 4) for size in (4, 16, 64)}
    places = {1: "1", 2: "11", 4: "22"}
    rows = [f"{places[n]},{size},{seconds},0" for (n, size), seconds in step_s.items()]
    (folder / "placements.csv").write_text("\n".join(["placement,local_bsz,step_time,sync_time", *rows]) + "\n")
    rows = [f"8,8,{size},{0.5 + 0.1 * size + 0.25 * 8},0" for size in (4, 64)]
    head = "num_nodes,num_replicas,local_bsz,step_time,sync_time"
    (folder / "scalability.csv").write_text("\n".join([head, *rows]) + "\n")
    (folder / "validation-8.csv").write_text("progress,iteration,metric\n1,500,0.6\n2,1000,0.8\n")
    (folder / "validation-16.csv").write_text("progress,iteration,metric\n1,250,0.4\n2,500,0.9\n")
    path = tmp_path / "workloads" / "workload-1.csv"
    path.parent.mkdir()
    path.write_text(
        "name,time,application,num_replicas,batch_size\nb,40,net,2,8\na,10,net,1,8\nc,50,other,1,8\nd,60,net,4,8\n"
    )
    return path


def test_jobs_come_by_arrival_and_only_of_what_was_measured(workload):
    jobs = read_pollux(workload, UNIT, 0, 100)
    assert [(job.request.job_id, job.arrives_s) for job in jobs] == [("a", 10.0), ("b", 40.0), ("d", 60.0)]
    assert {job.request.sweep for job in jobs} == {"net"}
    assert [(job.request.workers, job.request.servers) for job in jobs] == [(1, 1), (2, 1), (4, 2)]


def test_a_step_takes_what_was_measured(workload):
    application = read_application(workload.parent.parent / "traces" / "net")
    assert application.step_s == pytest.approx(0.5)
    assert application.sample_s == pytest.approx(0.1)
    assert application.replica_s == pytest.approx(0.25)
    # 1,000 iterations stand for 1,000 steps of 8 samples, or 500 of 16.
    for batch, steps in ((8, 1000), (16, 500)):
        speed = application.speed(batch, 2, 1)
        assert 1000 * speed.iteration_s(2, 1) == pytest.approx(steps * (0.5 + 0.1 * batch / 2 + 0.25 * 2))
        assert 1000 * speed.iteration_s(4, 2) == pytest.approx(steps * (0.5 + 0.1 * batch / 4 + 0.25 * 4))


def test_early_feedback_is_read_from_the_curve(workload):
    application = read_application(workload.parent.parent / "traces" / "net")
    assert application.error(8, 0.1) == pytest.approx(1 - 0.2 * 0.6)
    assert application.error(8, 0.75) == pytest.approx(1 - 0.7)
    assert application.error(16, 1.0) == pytest.approx(1 - 0.9)
    kinds = {(job.feedback, job.loss) for seed in range(10) for job in read_pollux(workload, UNIT, seed, 100)}
    expected = {(application.error(batch, 0.1), application.error(batch, 1.0)) for batch in (8, 16)}
    assert kinds == expected, "batch sizes are drawn from those that were measured"
    assert read_pollux(workload, UNIT, 3, 100) == read_pollux(workload, UNIT, 3, 100)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("name,time\n", "line 1: no column 'application'"),
        ("name,time,application,num_replicas\nx,soon,net,1\n", "line 2: not a job"),
        ("name,time,application,num_replicas\nx,1,other,1\n", "has no measurements for the applications"),
    ],
)
def test_an_invalid_workload_is_refused(workload, text, message):
    workload.write_text(text)
    with pytest.raises(DataError, match=message):
        read_pollux(workload, UNIT, 0, 100)


def test_unreadable_measurements_are_reported(workload):
    folder = workload.parent.parent / "traces" / "net"
    (folder / "validation-8.csv").write_text("iteration,metric\n1,many\n")
    with pytest.raises(DataError, match=r"8\.csv, line 2: "):
        read_application(folder)
    for path in folder.glob("validation-*"):
        path.unlink()
    with pytest.raises(DataError, match="no validation-BATCH"):
        read_application(folder)


def test_the_command_plays_a_workload(workload, capsys):
    assert cli.main(["simulate", "--trace", str(workload), "--policy", "elastic,static"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == 2 * ["policy", "elastic", "static"]


def test_pollux_under_elastic_and_static(shared_data):
    """Eight hours of jobs on 16 nodes, the size of Pollux's cluster: measured curves decide which jobs are stopped."""
    folder = shared_data / "job_traces" / "pollux_osdi21" / "workloads"
    jobs = read_pollux(folder / "workload-1.csv", UNIT, 0, 100)
    assert len(jobs) == 134, "66 of cifar10 and 68 of ncf"
    for job in jobs:
        assert 0.0 < job.loss < job.feedback < 1.0, "accuracy grows"
    spec = Spec.of({"cluster": {"nodes": 16}, "sweep": {"threshold": 4}})
    elastic, static = (simulate_jobs(spec, jobs, policy) for policy in ("elastic", "static"))
    for found in (elastic, static):
        assert found["resources"] == {"leaked": 0}
        assert len(found["trials"]) == 134
    assert elastic["summary"]["early_feedback_mean_s"] < static["summary"]["early_feedback_mean_s"]
    assert elastic["makespan_s"] < static["makespan_s"]
