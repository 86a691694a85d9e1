"""Figures of the paper that are drawn from the simulator: one setting with the command, and the paper's numbers."""

from __future__ import annotations

import dataclasses
import json
import sys
from itertools import pairwise
from unittest.mock import MagicMock

import numpy as np
import pytest

from benchmarks.paper import (
    case_study,
    drawing,
    elasticity,
    fig_jobs,
    fig_sweeps,
    figures,
    model_costs,
    published,
    scaled,
)
from benchmarks.paper.sources import Simulated
from hscheduler.simulator import paper
from hscheduler.simulator.run import costs_of


def test_figures_and_the_command_are_of_one_setting():
    """``simulate --paper`` makes jobs from a sweep's tables, the figures by themselves; only their lots differ."""
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
    """Of the sweeps that the figures show, those that take a second to simulate."""

    models, policies = ("logistic",), ("static", "elastic")


@pytest.fixture
def drawn(monkeypatch):
    """Give the numbers of the figures that are drawn, by name; matplotlib need not be there."""

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
    for key, name in (("share", "changing_share"), ("standing_still_share", "resizing_share")):
        share = drawn["table2_simulated"][key]["elastic"]["logistic"]
        assert share == pytest.approx(elastic["summary"][name], abs=1e-5)


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


def test_simulated_arrivals_agree_with_the_minutes_that_the_paper_gives(drawn, tmp_path):
    """EPS §7.1: under the default PS eleven jobs train at minute 28, and the first ends at minute 41."""
    fig_sweeps.fig15(OneModel(seeds=1), tmp_path, "simulated")
    ours = drawn["fig15_simulated"]["ours"]
    assert ours["threshold_reached_min"] == pytest.approx(paper.THRESHOLD_REACHED_MIN, abs=0.1)
    assert ours["first_finishes_static_min"] == pytest.approx(paper.FIRST_FINISHES_MIN, abs=0.1)
    assert published.RUNNING_JOBS["threshold_reached_min"] == paper.THRESHOLD_REACHED_MIN
    assert published.RUNNING_JOBS["first_finishes_static_min"] == paper.FIRST_FINISHES_MIN
    for seed in range(5):
        times = list(scaled.Experiment(seed=seed, trials=20).jobs())
        assert times[paper.THRESHOLD - 1].arrives_s == pytest.approx(paper.THRESHOLD_ARRIVES_S, abs=1)
        assert all(a.arrives_s <= b.arrives_s for a, b in pairwise(times))


def test_utilisation_tells_processors_from_memory(drawn, tmp_path):
    fig_sweeps.fig19(OneModel(seeds=1), tmp_path, "simulated")
    for shares in drawn["fig19_simulated"]["mean_until_its_end"].values():
        assert 0.0 < shares["CPU"] < shares["memory"] <= 1.0
