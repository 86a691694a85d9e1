"""Sweeps that cannot work are refused before they start, by every runner."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import hscheduler
from eps.errors import ConfigError, DataError, StorageError
from eps.ml.metrics import EvalSums, summary_names
from eps.spec.job_spec import JobSpec
from hscheduler import cli
from hscheduler.cli.commands.common import print_failures
from hscheduler.core import events as e
from hscheduler.core.jobs import Phase
from hscheduler.core.resources import Resources
from hscheduler.live import checks
from hscheduler.live.checks import check_sweep, warnings_of
from hscheduler.live.scheduler import LiveScheduler, LiveSettings
from hscheduler.live.submission import Submission, is_retryable
from hscheduler.live.sweep import Sweep
from hscheduler.reports.news import failures
from hscheduler.runners import Here
from hscheduler.service.sweeps import Sweeps
from hscheduler.spec import ClusterSpec, Spec
from hscheduler.spec import space as spaces

pytest.importorskip("sklearn", reason="the data is scikit-learn's")

OWN = """
from eps.ml.models import Softmax


class Net(Softmax):
    pass
"""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with files, which is the current directory."""
    monkeypatch.setenv("EPS_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "own.py").write_text(OWN)
    (tmp_path / "empty.csv").touch()
    (tmp_path / "thin.csv").write_text("1,2\n3,4\n" * 20)
    return tmp_path


def tables(**sections: dict[str, Any]) -> dict[str, Any]:
    job = {"data": "sklearn:digits", "model": "softmax", "test": "0.2", "workers": 2, "servers": 1, "iterations": 9}
    found: dict[str, Any] = {
        "cluster": {"nodes": 2, "vcores": 4},
        "sweep": {"trials": 3, "algorithm": "random"},
        "space": {"learning_rate": {"loguniform": [1e-3, 1]}},
        "job": job,
    }
    space = sections.pop("space", found["space"])
    return {**{name: {**table, **sections.get(name, {})} for name, table in found.items()}, "space": space}


#: Sections that cannot work, and the reason; first those that are found without reading the data.
REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"sweep": {"metric": "rmse"}}, "metric is 'rmse', but a job of softmax has accuracy, f1, loss, test_loss"),
    (
        {"sweep": {"metric": "acuracy", "direction": "maximize"}, "job": {"model": "own.py:Net"}},
        "metric is 'acuracy', but a job of own.py:Net has accuracy, f1, loss, test_loss",
    ),
    ({"job": {"data": "nofile.csv"}}, "nofile.csv: no such file"),
    ({"job": {"data": "sklearn:nope"}}, "data is 'sklearn:nope', but the scikit-learn data set must be one of"),
    ({"job": {"data": ""}}, "data is empty, but must be a path or sklearn:NAME"),
    ({"job": {"test": "nofile.csv"}}, "nofile.csv: no such file"),
    ({"job": {"model": "softmux"}}, "softmux"),
    ({"job": {"model": "nofile.py:Net"}}, "nofile.py"),
    ({"job": {"model": "own.py:Nope"}}, "Nope"),
    ({"job": {"hidden": 10}}, "hidden is given, but softmax has no such option"),
    ({"job": {"model": "lasso", "l1": 0.1, "l2": 0.1}}, "lasso"),
    ({"job": {"at": ["3:add-workers=1"]}}, "at is '3:add-workers=1', but must be empty: the scheduler decides"),
    ({"job": {"workers": 8}}, "more than the whole cluster holds .nodes = 2, vcores = 4, memory = 16GiB"),
    ({"cluster": {"memory": "1GiB"}}, "more than the whole cluster holds .nodes = 2, vcores = 4, memory = 1GiB"),
    ({"cluster": {"nodes": 1, "vcores": 1}}, r"whole cluster holds \(nodes = 1, vcores = 1, memory = 16GiB\)"),
    (
        {"space": {"l2": {"choice": [0.1, 0.1]}, "seed": {"randint": [3, 4]}}},
        r"\[space\] has one point, so all 3 trials would be the same: .* or set trials = 1",
    ),
    ({"space": {}}, r"\[space\] is empty, so all 3 trials would be the same: .* or set trials = 1"),
    ({"space": {"data": {"choice": ["a.csv", "b.csv"]}}, "job": {}}, "a.csv: no such file"),
    ({"job": {"data": "empty.csv"}}, "empty.csv"),
    ({"job": {"model": "svm"}}, "no trial can work: "),
    ({"job": {"splits": 5000, "workers": 2}}, "no trial can work: "),
    (
        {"job": {"data": "thin.csv", "model": "linear", "servers": 3}},
        "no trial can work: servers is 3, .*--servers 2",
    ),
]
NEED_DATA = ("empty.csv", "no trial can work: ")


def refused(sections: dict[str, Any]) -> dict[str, Any]:
    found = tables(**sections)
    if "data" in found["space"]:
        del found["job"]["data"]
    return found


@pytest.fixture
def ran(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Record where a sweep was started."""
    found: list[str] = []
    monkeypatch.setattr(Sweep, "run", lambda sweep: found.append("sweep"))
    return found


@pytest.mark.parametrize(("sections", "why"), REFUSED)
def test_a_sweep_without_a_working_trial_is_refused(sections: dict[str, Any], why: str, ran: list[str]) -> None:
    with pytest.raises(ConfigError, match=why):
        hscheduler.sweep(refused(sections))
    assert not ran


@pytest.mark.parametrize("job", [{"keep": 3}, {"checkpoint_dir": "c"}, {"queue": "batch"}])
def test_settings_that_a_sweep_has_a_use_for_are_not_refused(job: dict[str, Any]) -> None:
    # The scheduler chooses when checkpoints are taken; a file for YARN may run here.
    check_sweep(Spec.of(tables(job=job)))


@pytest.mark.parametrize("command", ["sweep", "compare"])
def test_commands_refuse_it_in_one_line(
    command: str, folder: Path, ran: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    path = folder / "sweep.toml"
    path.write_text('[space]\nl2 = { choice = [0, 1] }\n[job]\ndata = "nofile.csv"\n[sweep]\nalgorithm = "random"\n')
    assert cli.main([command, str(path), "--quiet"]) == 2
    printed = capsys.readouterr()
    assert "nofile.csv: no such file" in printed.err and printed.err.count("\n") == 1
    assert not printed.out and not ran


@pytest.mark.parametrize(("sections", "why"), [each for each in REFUSED if not each[1].startswith(NEED_DATA)])
def test_a_service_refuses_it_without_reading_the_data(sections: dict[str, Any], why: str) -> None:
    found = refused(sections)
    cluster = ClusterSpec(**found.pop("cluster"))
    with LiveScheduler(cluster.capacities(), LiveSettings()) as scheduler:
        with pytest.raises(ConfigError, match=why):
            Sweeps(scheduler, cluster).run("digits", found)
        assert not scheduler.registry.sweeps


def test_a_sweep_with_some_working_trials_is_accepted() -> None:
    for space in (
        {"data": {"choice": ["nofile.csv", "sklearn:digits"]}},
        {"model": {"choice": ["svm", "softmax"]}},
        {"workers": {"randint": [2, 12]}},
        {"model": {"choice": ["svm", "own.py:Net"]}},
        {"batch_size": {"quniform": [10, 100, 10]}},
    ):
        found = tables(space=space)
        for name in space:
            found["job"].pop(name, None)
        check_sweep(Spec.of(found))
    check_sweep(Spec.of(tables(space={}, sweep={"trials": 1})))


def test_a_metric_of_the_test_data_needs_test_data() -> None:
    sweep = {"metric": "test_loss"}
    for job in ({"test": "0.2"}, {"test": "", "folds": 3, "fold": 0}):
        check_sweep(Spec.of(tables(sweep=sweep, job=job)))
    found = tables(sweep=sweep, space={"test": {"choice": ["", "0.2"]}})
    del found["job"]["test"]
    check_sweep(Spec.of(found))
    found["space"] = {"test": {"choice": [""]}, "seed": {"choice": [1, 2, 3]}}
    with pytest.raises(ConfigError, match=r"'test_loss', .* has loss$"):
        check_sweep(Spec.of(found))


def test_data_is_read_once_and_the_fault_of_the_first_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[str] = []

    def check_data(request: Any) -> None:
        read.append(request.spec.data)
        raise DataError(f"{request.spec.data} has no rows")

    monkeypatch.setattr(checks, "check_data", check_data)
    found = tables(
        space={"data": {"choice": ["empty.csv", "own.py"]}, "learning_rate": {"loguniform": [1e-3, 1]}},
        job={"test": ""},
    )
    del found["job"]["data"]
    with pytest.raises(ConfigError, match=r"empty\.csv has no rows"):
        check_sweep(Spec.of(found))
    assert sorted(read) == ["empty.csv", "own.py"]
    read.clear()
    check_sweep(Spec.of(found), reads_data=False)
    assert not read


def test_a_cache_that_cannot_be_written_is_no_fault_of_a_trial(folder: Path) -> None:
    (folder / "home").mkdir()
    (folder / "home" / "cache").write_text("a file")
    with pytest.raises(StorageError, match="cache: cannot be created"):
        check_sweep(Spec.of(tables()))


def test_settings_that_work_only_together_are_found_by_random_points(monkeypatch: pytest.MonkeyPatch) -> None:
    space = {"data": {"choice": ["nofile.csv", "sklearn:digits"]}, "model": {"choice": ["softmux", "softmax"]}}
    found = tables(space=space)
    del found["job"]["data"], found["job"]["model"]
    check_sweep(Spec.of(found))
    monkeypatch.setattr(spaces, "_NUM_RANDOM", 0)
    with pytest.raises(ConfigError, match="no trial can work: "):
        check_sweep(Spec.of(found))


@pytest.mark.parametrize(
    ("sections", "why"),
    [
        (
            {"space": {"workers": {"randint": [12, 20]}}},
            "a job has 12 workers of .* and 1 server of .*: more than the whole cluster",
        ),
        ({"space": {"workers": {"choice": [0, -1]}}}, "workers is 0, but must be at least 1"),
        ({"space": {"workers": {"choice": [0, 12]}}}, "workers is 0, but must be at least 1"),
        ({"space": {"workers": {"choice": [12, 0, 2]}}}, ""),
    ],
)
def test_jobs_that_are_only_simulated_must_fit_too(sections: dict[str, Any], why: str) -> None:
    found = tables(**sections)
    del found["job"]["workers"]
    if not why:
        checks.check_sizes(Spec.of(found))
        return
    with pytest.raises(ConfigError, match=why):
        checks.check_sizes(Spec.of(found))


def test_a_sweep_must_fit_beside_its_application_master() -> None:
    spec = Spec.of(tables(cluster={"nodes": 3, "memory": "4GiB"}, job={"workers": 2, "servers": 1}))
    checks.check_sizes(spec)
    told = "beside the application master of .*; with 2048 MiB for each container it would fit: set container_memory"
    with pytest.raises(ConfigError, match=told):
        checks.check_sizes(spec, Resources(1, 4096))
    checks.check_sizes(spec.under("gain"), Resources(1, 4096))


def test_no_job_is_left_by_a_check(folder: Path) -> None:
    check_sweep(Spec.of(tables()))
    jobs = folder / "home" / "jobs"
    assert not jobs.exists() or not list(jobs.iterdir())


def test_simulate_refuses_jobs_that_the_cluster_cannot_hold(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = folder / "sweep.toml"
    path.write_text("[space]\nl2 = { choice = [0, 1] }\n[job]\nworkers = 12\n")
    assert cli.main(["simulate", str(path)]) == 0, "a simulation ignores data"
    path.write_text("[cluster]\nnodes = 2\n[space]\nl2 = { choice = [0, 1] }\n[job]\nworkers = 12\n")
    capsys.readouterr()
    assert cli.main(["simulate", str(path)]) == 2
    printed = capsys.readouterr()
    assert "more than the whole cluster holds" in printed.err and not printed.out


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("batch_size", {"uniform": [10, 100]}),
        ("hidden", {"loguniform": [10, 100]}),
        ("splits", {"quniform": [10, 100, 1.0]}),
    ],
)
def test_whole_numbers_are_searched_among_whole_numbers(name: str, value: dict[str, Any]) -> None:
    rule = rf"{name} is a whole number: use randint = \[10, 101\] \(without 101\) or quniform = \[10, 100, 1\]"
    with pytest.raises(ConfigError, match=rule):
        Spec.of({"space": {name: value}})


def test_a_job_that_lacks_the_metric_is_not_retried() -> None:
    why = "metric is 'test_loss', but the job reported accuracy, f1, loss"
    for told, is_worth in ((why, False), ("training diverged at clock 3", False), ("worker-1 was lost", True)):
        trial = Submission("trial-1", "sweep", "name", JobSpec(), why=told, has_started=True)
        trial.end(Phase.FAILED)
        assert is_retryable(trial) is is_worth, told


def test_no_log_is_shown_for_a_metric_that_a_job_lacks() -> None:
    why = "metric is 'test_loss', but the job reported accuracy, f1, loss"
    told = failures([e.JobOver("trial-1", Phase.FAILED, why)], lambda job_id: pytest.fail("its log was asked for"))
    assert told == [f"trial-1 failed: {why}"]


def test_the_metrics_of_a_task_are_those_that_its_jobs_report() -> None:
    ones = (1, 1)
    for task in ("binary", "multiclass", "regression"):
        counts = () if task == "regression" else ones
        bins = ones if task == "binary" else ()
        sums = EvalSums(task, 2, 0.5, 1, 0.5, 0.5, counts, counts, counts, bins, bins, 1.0, 1.0)
        assert set(sums.summary()) == set(summary_names(task))


def test_each_reason_of_failures_is_printed_once(capsys: pytest.CaptureFixture[str]) -> None:
    gone = "sweep-a-trial-{} is gone"
    ends = [("failed", "no disk"), ("finished", ""), ("failed", gone), ("failed", "no disk"), ("failed", gone)]
    trials = [
        {"job_id": f"trial-{k}", "name": f"sweep-a-trial-{k}", "phase": phase, "why": why.format(k)}
        for k, (phase, why) in enumerate([*ends, ("failed", "no disk"), ("killed", "the worst")])
    ]
    print_failures({"trials": trials})
    told = ["trial-0 and 2 others failed: no disk", "trial-2 and trial-4 failed: it is gone"]
    assert capsys.readouterr().err.splitlines() == told


def test_a_container_larger_than_a_node_does_not_fit() -> None:
    assert ClusterSpec().container() == Resources(1, 4096)
    with pytest.raises(ConfigError, match="the whole cluster"):
        check_sweep(Spec.of(tables(cluster={"container_memory": "32GiB"})))


SPACE = {"learning_rate": {"loguniform": [1e-3, 1]}}
SMALL = {"nodes": 1, "vcores": 8, "memory": "32GiB", "master_container": True}


@pytest.mark.parametrize(
    ("policy", "sweep", "why"),
    [
        (
            "elastic",
            {"threshold": 3},
            "2 trials fit at once, threshold 3: nothing would ever be stopped; set thresh",
        ),
        ("elastic", {"threshold": 1}, ""),
        ("elastic", {}, "2 trials fit at once, threshold 2: nothing would ever be stopped"),
        ("elastic", {"stop": "none"}, ""),
        ("static", {"threshold": 3}, ""),
        ("static-stop", {}, "2 trials fit at once, threshold 2"),
        ("gain", {"threshold": 3}, ""),
        ("gain", {"threshold": 3, "parallelism": 3}, "parallelism is 3, threshold 3: nothing would ever be stopped"),
        ("elastic", {"trials": 2}, ""),
        ("static", {"stop": "median", "trials": 3}, "needs 4 trials, but the sweep has 3 trials"),
        ("static", {"stop": "sha"}, ""),
        (
            "static-stop",
            {"feedback_iteration": 301},
            "has 300 iterations and its early feedback comes at",
        ),
    ],
)
def test_a_rule_that_can_stop_nothing_is_warned_of_with_the_numbers(
    policy: str, sweep: dict[str, Any], why: str
) -> None:
    own = {"cluster": SMALL, "sweep": {"trials": 9, "algorithm": "random", "stop": "", **sweep}, "space": SPACE}
    # Slept, so that it does not matter how many cores this host has.
    job = {"workers": 2, "servers": 1, "iterations": 300, "stretch_s": 0.01}
    found = warnings_of(Spec.of({**own, "job": job}), policy)
    assert [why in sentence for sentence in found] == ([True] if why else []), found


@pytest.mark.parametrize(("nodes", "policy", "number"), [(1, "gain", 0), (4, "gain", 1), (4, "static", 0)])
def test_a_cluster_of_more_containers_than_the_host_has_cores_is_warned_of(
    nodes: int, policy: str, number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda pid: set(range(4)))
    own = {"cluster": {"nodes": nodes, "vcores": 4}, "sweep": {"trials": 9, "algorithm": "random"}, "space": SPACE}
    found = warnings_of(Spec.of({**own, "job": {"workers": 1, "servers": 1}}), policy)
    told = "[cluster] has 16 containers, but this host 4 cores: "
    assert sum(each.startswith(told) for each in found) == number


@pytest.mark.parametrize(
    ("sweep", "why"),
    [
        ({}, ""),
        ({"arrival": "burst"}, "so points are drawn before the first result, but algorithm 'tpe' learns from results"),
        ({"arrival": "burst", "parallelism": 2}, "before their trials can start, but algorithm 'tpe'"),
        ({"arrival": "poisson:3s", "algorithm": "optuna"}, "before their trials can start, but algorithm 'optuna'"),
        ({"arrival": "burst", "algorithm": "random"}, ""),
    ],
)
def test_arrivals_beside_an_algorithm_that_learns_are_warned_of(sweep: dict[str, Any], why: str) -> None:
    found = warnings_of(Spec.of({"sweep": {"trials": 9, "stop": "none", **sweep}, "space": SPACE}), "static")
    assert [why in sentence for sentence in found] == ([True] if why else []), found


def test_warnings_are_logged_when_a_sweep_is_about_to_start(caplog: pytest.LogCaptureFixture) -> None:
    Here(Spec.of(tables(sweep={"trials": 3, "algorithm": "tpe", "arrival": "burst"})), "static")
    assert "arrival is 'burst'" in caplog.text


def test_a_space_with_fewer_points_than_trials_is_warned_of() -> None:
    tables = {"space": {"l2": {"choice": [0, 0.1]}, "momentum": {"quniform": [0.1, 0.3, 0.1]}}}
    few = Spec.of({**tables, "sweep": {"trials": 7, "stop": "none"}})
    assert warnings_of(few, "static") == [
        "[space] has 6 points, so some of the 7 trials are the same: set trials to at most 6"
    ]
    assert warnings_of(Spec.of({**tables, "sweep": {"trials": 6, "stop": "none"}}), "static") == []
