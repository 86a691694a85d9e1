"""The paper's sweeps in the simulator: its setting, and the shape of what it found."""

from __future__ import annotations

import dataclasses
import json

import pytest

from hscheduler import cli
from hscheduler.simulator import paper
from hscheduler.simulator.run import simulate


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


def test_approaches_are_in_the_order_of_figs_14_and_17():
    """EPS §7.1 and §7.2: EPS before the others, and its feedback first; before the default PS by more than its 2.5."""
    names = ("elastic", "static", "kill", "priority")
    spec = paper.paper_spec("LR")
    # The gain of §7.1 needs faster arrivals than its minutes 28 and 41: with those the last jobs arrive too late.
    faster = dataclasses.replace(spec, sweep=dataclasses.replace(spec.sweep, arrival="poisson:60s"))
    for of in (spec, faster):
        reports = {policy: simulate(of, policy, model=paper.MODEL) for policy in names}
        elastic = reports.pop("elastic")
        if of is faster:
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
