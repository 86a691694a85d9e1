"""A sweep's file: its values, and the messages on invalid ones."""

from __future__ import annotations

import os
from random import Random
from typing import Any

import pytest

from eps.errors import ConfigError
from hscheduler.core.resources import Resources
from hscheduler.core.rungs import Stopping
from hscheduler.spec import Spec, memory_mb
from hscheduler.spec.space import Dimension

GOOD = """
[cluster]
nodes = 3
vcores = 8
memory = "32GiB"

[sweep]
trials = 5
arrival = "poisson:2.5s"
direction = "maximize"

[space]
learning_rate = { loguniform = [1e-4, 1] }
l2 = { choice = [0, 1e-4] }

[job]
model = "logistic"
workers = 2
servers = 1
stretch_s = 0.01
"""


def test_a_file_is_parsed(tmp_path):
    path = tmp_path / "sweep.toml"
    path.write_text(GOOD)
    spec = Spec.read(path)
    assert spec.cluster.capacities() == dict.fromkeys(("node-1", "node-2", "node-3"), Resources(8, 32768))
    assert spec.sweep.mean_gap_s() == 2.5
    assert spec.job_spec().stretch_s == 0.01
    assert [dimension.name for dimension in spec.space] == ["learning_rate", "l2"]
    request = spec.request("a", "s")
    assert (request.workers, request.servers, request.most_workers, request.most_servers) == (2, 1, 72, 12)
    assert request.worker == Resources(1, 4096), "as in EPS §6"
    assert spec.job_spec({"learning_rate": 0.5}).learning_rate == 0.5


def test_default_cluster_has_a_container_for_each_core_and_at_least_sixteen(monkeypatch):
    for cores, containers in ((2, 16), (16, 16), (19, 16), (64, 64)):
        monkeypatch.setattr(os, "sched_getaffinity", lambda pid, cores=cores: set(range(cores)))
        assert Spec.of({}).cluster.num_containers() == containers
    assert Spec.of({"cluster": {"nodes": 2}}).cluster.num_containers() == 8


def test_settings_of_the_job_may_be_spelled_as_flags():
    spec = Spec.of({"job": {"member-timeout": 4.5, "stretch": 0.5, "checkpoint-every": "5"}})
    assert spec.job == {"member_timeout_s": 4.5, "stretch_s": 0.5, "checkpoint_every": "5"}
    assert spec.job_spec({"stretch_s": 2}).stretch_s == 2.0


@pytest.mark.parametrize(("job", "metric"), [({}, "loss"), ({"test": "0.2"}, "test_loss"), ({"folds": 3}, "test_loss")])
def test_trials_are_ranked_on_test_data_if_there_is_any(job: dict[str, Any], metric: str) -> None:
    values = {"job": {"data": "sklearn:digits", "model": "softmax", **job}}
    assert Spec.of(values).sweep.metric == metric
    assert Spec.of({**values, "sweep": {"metric": "loss"}}).sweep.metric == "loss"


@pytest.mark.parametrize("metric", ["loss", "test_loss", "rmse", "mae"])
def test_a_lower_loss_is_better(metric):
    tables = {"sweep": {"metric": metric}, "job": {"test": "0.2"}}
    assert Spec.of(tables).sweep.direction == "minimize"
    read = Spec.of({**tables, "sweep": {"metric": metric, "direction": "maximize"}})
    assert read.sweep.direction == "maximize"
    assert Spec.of(read.tables()) == read


@pytest.mark.parametrize("metric", ["accuracy", "f1", "auc", "r2", "precision", "recall"])
def test_the_direction_of_a_metric_that_eps_prints_is_known(metric):
    assert Spec.of({"sweep": {"metric": metric}, "job": {"test": "0.2"}}).sweep.direction == "maximize"


def test_settings_that_a_scheduler_could_not_start_are_refused():
    spec = Spec.of({"job": {"model": "logistic"}})
    with pytest.raises(ConfigError, match=r"13, .*partitions.* 12"):
        spec.request("a", "s", {"servers": 13})
    with pytest.raises(ConfigError, match="the scheduler decides"):
        spec.request("a", "s", {"at": ["4:add-workers=2"]})


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (('direction = "maximize"', 'metric = "acuracy"'), "metric is 'acuracy', .* set direction to one of"),
        (("trials = 5", "kill_restart_s = nan"), "kill_restart_s is nan, but must be finite"),
        (("trials = 5", "kill_restart_s = inf"), "kill_restart_s is inf, but must be finite"),
        (("[0, 1e-4]", "[0, inf]"), r"space.l2: choice has \[0, inf\], but must have finite numbers"),
        (("[0, 1e-4]", "[[0], [nan]]"), r"space.l2: choice has \[\[0\], \[nan\]\], but must have finite numbers"),
        (("servers = 1", "l1 = inf"), "job.l1 is inf, but must be finite"),
        (("trials = 5", 'metric = "accuracy"'), "metric is 'accuracy', but there is no test data"),
        (("choice = [0, 1e-4]", "quniform = [0.1, 0.4, 1]"), "no multiple of the step is between"),
        (("nodes = 3", "node = 3"), r"'node' is not a setting of \[cluster\]; did you mean nodes"),
        (("nodes = 3", "nodes = -1"), "nodes is -1, but must be at least 0"),
        (("nodes = 3", 'nodes = "3"'), "cluster.nodes is '3', but must be a whole number"),
        (('"32GiB"', '"32"'), "memory is '32', but must be a number and a unit"),
        (("trials = 5", "retries = -1"), "retries is -1, but must be at least 0"),
        (("trials = 5", "trial_timeout_s = -1"), "trial_timeout_s is -1.0, but must be at least 0"),
        (("trials = 5", "trial_timeout_s = nan"), "trial_timeout_s is nan, but must be at least 0"),
        (("trials = 5", 'algorithm = "grid"'), "algorithm is 'grid', but must be one of tpe, random, optuna"),
        (("{ loguniform = [1e-4, 1] }", "{ uniform = [0, inf] }"), "must have finite numbers"),
        (("{ loguniform = [1e-4, 1] }", "{ randint = [0.5, 3] }"), "must have whole numbers"),
        (("trials = 5", "trials = 0"), "trials is 0, but must be at least 1"),
        (("trials = 5", "trials = 1000000000"), "trials is above"),
        (("nodes = 3", "nodes = 1000000000"), "nodes is above"),
        (("workers = 2", "workers = 1000000000"), "workers is 1000000000, but must be at most"),
        (('"poisson:2.5s"', '"poisson"'), "arrival is 'poisson', but must be burst or poisson:Ns"),
        (('"poisson:2.5s"', '"poisson:0s"'), "arrival is 'poisson:0s'"),
        (('"maximize"', '"max"'), "direction is 'max', but must be one of minimize, maximize"),
        (("{ loguniform = [1e-4, 1] }", "{ loguniform = [0, 1] }"), "loguniform starts at 0, but must start above 0"),
        (("{ loguniform = [1e-4, 1] }", "{ uniform = [1, 0] }"), "but the lower bound must come first"),
        (("{ loguniform = [1e-4, 1] }", "{ uniform = [1] }"), "uniform takes 2 numbers"),
        (("{ loguniform = [1e-4, 1] }", "0.1"), "space.learning_rate is 0.1, but must be a table with one of"),
        (("{ loguniform = [1e-4, 1] }", "{ loguniforn = [1e-4, 1] }"), "did you mean loguniform"),
        (("{ choice = [0, 1e-4] }", "{ choice = [] }"), "space.l2: choice is empty"),
        (("l2 =", "momentun ="), "'momentun' is not a setting of eps run, .* did you mean momentum"),
        (("workers = 2", "l2 = 0.1"), r"l2 is in \[space\] and in \[job\]"),
        (("workers = 2", "learning-rate = 0.1"), r"learning_rate is in \[space\] and in \[job\]"),
        (("workers = 2", "stretch = 0.1"), "job: stretch_s is given twice, in two spellings"),
        (("workers = 2", "worker = 2"), "unknown key 'worker'; did you mean workers"),
        (("workers = 2", "workers = 80"), "80 workers would share 72 splits"),
        (("stretch_s = 0.01", "stretch_s = -1"), "stretch_s is -1, but must be at least 0"),
        (("[space]", "[job.yarn]\nquue = 'x'\n[space]"), r"job: \[yarn\]: unknown key 'quue'; did you mean queue"),
        (("[space]", "[spaces]"), "'spaces' is not a section; did you mean space"),
        (("[job]", "job"), "Expected '='"),
    ],
)
def test_invalid_values_are_refused_with_the_value_and_the_rule(tmp_path, change, message):
    path = tmp_path / "sweep.toml"
    assert change[0] in GOOD
    path.write_text(GOOD.replace(*change))
    with pytest.raises(ConfigError, match=message) as raised:
        Spec.read(path)
    assert str(path) in str(raised.value)


def test_a_file_that_is_not_there(tmp_path):
    with pytest.raises(ConfigError, match="No such file"):
        Spec.read(tmp_path / "no.toml")


def test_memory():
    assert memory_mb("512MiB") == 512
    assert memory_mb("16 GiB") == 16384
    with pytest.raises(ConfigError, match="'0GiB'"):
        memory_mb("0GiB", "container_memory")


def test_draws_lie_in_the_space():
    random = Random(3)
    for kind, arguments, holds in (
        ("uniform", [-1, 2], lambda v: -1 <= v <= 2),
        ("loguniform", [1e-4, 1], lambda v: 1e-4 <= v <= 1),
        ("quniform", [0, 10, 2.5], lambda v: v in (0, 2.5, 5, 7.5, 10)),
        ("randint", [3, 6], lambda v: v in (3, 4, 5)),
        ("choice", ["sgd", "adam"], lambda v: v in ("sgd", "adam")),
    ):
        dimension = Dimension.of("x", {kind: arguments})
        values = [dimension.draw(random) for _ in range(200)]
        assert all(holds(value) for value in values), kind
        assert len(set(values)) > 1


def test_feedback_after_the_last_iteration_is_refused(tmp_path):
    path = tmp_path / "sweep.toml"
    sweep, job = "[sweep]\nfeedback_iteration = 51\n", "[job]\niterations = 50\n"
    path.write_text(sweep + job)
    with pytest.raises(ConfigError, match=r"51, .* at most .* 50"):
        Spec.read(path)
    either = f"{sweep}[space]\niterations = {{ choice = [50, 51] }}\n"
    for fine, iteration in ((f"{sweep}[job]\niterations = 51\n", 51), (job, 100), (either, 51)):
        path.write_text(fine)
        assert Spec.read(path).sweep.feedback_iteration == iteration
    # A service passes the default explicitly; no user set it.
    path.write_text(job)
    assert Spec.of(Spec.read(path).tables()) == Spec.read(path)


def test_the_stopping_rule_of_a_file():
    sweep = {"stop": "asha", "eta": 4, "grace_iterations": 25, "max_iterations": 400}
    found = Spec.given({"sweep": sweep, "job": {"iterations": 500}}).sweep.stopping()
    assert found == Stopping("asha", 4, 25, 400)
    assert Spec.of({}).sweep.stopping() == Stopping("", 3, 100, 0), "its first rung is the feedback iteration"


@pytest.mark.parametrize(
    ("sweep", "iterations", "told"),
    [
        ({"stop": "halving"}, 500, "stop is 'halving', but must be one of none, threshold, median, sha, asha"),
        ({"eta": 1}, 500, "eta is 1, but must be at least 2"),
        ({"grace_iterations": -1}, 500, "grace_iterations is -1, but must be at least 0"),
        (
            {"grace_iterations": 90, "max_iterations": 90},
            500,
            "grace_iterations is 90, but must be below max_iterations, which is 90",
        ),
        (
            {"max_iterations": 900, "stop": "sha"},
            500,
            "max_iterations is 900, but must be at most iterations, which is 500",
        ),
        (
            {"grace_iterations": 500, "stop": "median"},
            500,
            "grace_iterations is 500, but must be below iterations, which is 500: else stop = 'median' judges no trial",
        ),
        (
            {"stop": "asha"},
            60,
            "grace_iterations is 100 (the feedback iteration), but must be below iterations, which is 60: else stop = "
            "'asha' judges no trial",
        ),
        (
            {"stop": "asha", "max_iterations": 50},
            60,
            "grace_iterations is 100 (the feedback iteration), but must be below max_iterations, which is 50",
        ),
    ],
)
def test_rules_that_would_judge_no_trial_are_refused(sweep, iterations, told):
    with pytest.raises(ConfigError) as caught:
        Spec.given({"sweep": sweep, "job": {"iterations": iterations}})
    assert told in str(caught.value)


def test_rungs_are_checked_against_the_longest_trial():
    tables = {"sweep": {"stop": "sha", "grace_iterations": 100}, "space": {"iterations": {"randint": [50, 401]}}}
    Spec.given(tables)
    with pytest.raises(ConfigError, match="must be below iterations, which is 99"):
        Spec.given({**tables, "space": {"iterations": {"randint": [50, 100]}}})
