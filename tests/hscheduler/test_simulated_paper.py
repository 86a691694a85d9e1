"""The paper's sweeps in the simulator: its setting, and the shape of what it found."""

from __future__ import annotations

import dataclasses
import json
import sys
from unittest.mock import MagicMock

import numpy as np
import pytest

from benchmarks.paper import case_study, drawing, elasticity, fig_jobs, figures, model_costs, scaled
from benchmarks.paper.sources import Simulated
from hscheduler import cli
from hscheduler.simulator import paper
from hscheduler.simulator.run import costs_of, simulate


def test_the_setting_is_that_of_section_6():
    """EPS §6: 36 nodes of four vCPUs and 16 GB; 75 jobs of eight workers and four servers; a threshold of 11."""
    for name in paper.MODELS:
        spec = paper.paper_spec(name)
        assert len(spec.cluster.capacities()) == 36
        assert (spec.cluster.vcores, spec.cluster.memory) == (4, "16GiB")
        request = spec.request("job", "sweep")
        assert (request.workers, request.servers) == (8, 4)
        assert (spec.sweep.trials, spec.sweep.threshold, spec.sweep.feedback_iteration) == (75, 11, 100)
        # 36 nodes of 4 hold 11 such jobs with their masters, and not 12.
        assert 36 * 4 // (1 + request.workers + request.servers) == spec.sweep.threshold
    assert len({paper.paper_spec(name, seed).sweep.seed for name in paper.MODELS for seed in range(10)}) == 80


def test_the_first_job_of_the_default_ends_at_the_41st_minute():
    """EPS Fig. 15: the default PS runs 11 jobs at most, and the first ends at about the 41st minute."""
    found = simulate(paper.paper_spec("LR"), "static", model=paper.MODEL)
    assert min(trial["finished_s"] for trial in found["trials"]) / 60 == pytest.approx(41, abs=1)
    assert max(running for _, running, _ in found["numbers"]) == 11


def test_figures_and_the_command_share_one_setting():
    """``simulate --paper`` makes jobs from a sweep's tables, the figures do not; only the random numbers differ."""
    for model in paper.MODELS.values():
        spec = next(paper.paper_spec(name) for name, ours in paper.MODELS.items() if ours == model)
        (job,) = scaled.Experiment(model, trials=1).jobs()
        asked = spec.request(job.request.job_id, "sweep")
        assert dataclasses.replace(asked, sweep=job.request.sweep) == job.request
        for size in ((8, 4), (1, 1), (72, 36)):
            assert paper.MODEL.speed(spec.job_spec()).iteration_s(*size) == job.speed.iteration_s(*size)
        assert spec.job_spec().iterations == job.iterations
        assert spec.sweep.mean_gap_s() == scaled.Experiment().mean_gap_s
        assert costs_of(spec, paper.MODEL) == paper.OURS
        assert spec.cluster.capacities() == scaled.nodes(36)


class OneModel(Simulated):
    """Those sweeps of the figures that take a second to simulate."""

    models, policies = ("logistic",), ("static", "elastic")


@pytest.fixture
def drawn(monkeypatch):
    """Return the data of the drawn figures by name; matplotlib need not be installed."""

    def start(columns=1, rows=1, **options):
        axes = np.empty((rows, columns), dtype=object)
        for place in np.ndindex(axes.shape):
            axes[place] = MagicMock()
        return MagicMock(), axes

    found = {}
    monkeypatch.setattr(drawing, "start", start)
    monkeypatch.setattr(drawing, "save", lambda figure, out, name, title, foot, numbers: found.update({name: numbers}))
    return found


def test_the_figures_of_sweeps_are_drawn_from_that_setting(drawn, tmp_path):
    source = OneModel(seeds=1)
    for name, draw in figures.SWEEPS.items():
        draw(source, tmp_path, "simulated")
        assert drawn[f"{name}_simulated"]["kind"] == "simulated"
    assert len(drawn) == len(figures.SWEEPS)
    ((static,), (elastic,)) = (source.reports("logistic", policy) for policy in source.policies)
    assert [len(report["trials"]) for report in (static, elastic)] == [paper.TRIALS] * 2
    times = drawn["fig14_simulated"]["training_time_s"]
    assert times["static"]["logistic"]["mean"] == pytest.approx(static["makespan_s"])
    assert times["elastic"]["logistic"]["mean"] == pytest.approx(elastic["makespan_s"])
    assert max(jobs for _, jobs in drawn["fig15_simulated"]["steps_s"]["static"]) == paper.THRESHOLD
    latency = drawn["fig17_simulated"]["latency_s"]["elastic"]["logistic"]["mean"]
    assert latency == pytest.approx(elastic["summary"]["early_feedback_mean_s"], abs=1e-3)
    assert len(drawn["fig18_simulated"]["arrival_and_latency_s"]["static"]) == paper.TRIALS
    share = drawn["table2_simulated"]["share"]["elastic"]["logistic"]
    assert share == pytest.approx(elastic["summary"]["resizing_share"], abs=1e-5)


def test_the_case_study_and_the_sizes_are_drawn_with_the_papers_numbers(drawn, tmp_path):
    """EPS §2.3: without help the first job takes 1735 s."""
    for name, draw in figures.CASE_STUDY.items():
        draw({"kind": "simulated", "reports": case_study.simulated()}, tmp_path, "simulated")
        assert drawn[f"{name}_simulated"]["kind"] == "simulated"
    assert drawn["fig2_simulated"]["ours"]["static"]["first_finishes_s"] == pytest.approx(1735, abs=1)
    found = elasticity.simulated()
    fig_jobs.fig22(found, tmp_path, found["kind"])
    sizes = drawn["fig22_simulated"]["elastic"]
    assert [size["nodes"] for size in sizes] == list(range(1, len(sizes) + 1))
    assert sizes[0]["iteration_s"] > 2 * min(size["iteration_s"] for size in sizes)


def test_the_models_of_the_paper_can_be_timed(monkeypatch, capsys):
    for name, value in (("ROWS", 50), ("FEATURES", 200)):
        monkeypatch.setattr(model_costs, name, value)
    monkeypatch.setattr(sys, "argv", ["model_costs", "--repeats", "2"])
    assert model_costs.main() == 0
    found = json.loads(capsys.readouterr().out)
    assert sorted(found["seconds"]) == sorted(paper.MODELS.values()) and found["over_logistic"]["logistic"] == 1
    assert all(len(times["values"]) == 2 for times in found["seconds"].values())


def test_approaches_are_in_the_order_of_figs_14_and_17():
    """EPS §7.1 and §7.2: EPS before the others, and its feedback first; before the default PS by more than its 2.5."""
    names = ("elastic", "static", "kill", "priority")
    reports = {policy: simulate(paper.paper_spec("LR"), policy, model=paper.MODEL) for policy in names}
    elastic = reports.pop("elastic")
    assert 1.74 <= reports["static"]["makespan_s"] / elastic["makespan_s"] <= 3.0
    for other in reports.values():
        assert other["makespan_s"] > elastic["makespan_s"]
        assert other["summary"]["early_feedback_mean_s"] > elastic["summary"]["early_feedback_mean_s"]


def test_one_command_simulates_all_of_them(tmp_path, capsys):
    target = tmp_path / "paper.json"
    assert cli.main(["simulate", "--paper", "--policy", "elastic", "--report", str(target)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line for line in lines if line.startswith("---")] == [f"--- {name}" for name in paper.MODELS]
    found = json.loads(target.read_text())
    assert [len(found[name]["elastic"]["trials"]) for name in paper.MODELS] == [75] * 8
