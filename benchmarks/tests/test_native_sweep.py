"""What benchmarks/yarn/native.py makes of its trials."""

from __future__ import annotations

import argparse
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest

from benchmarks.yarn import feedback, native
from benchmarks.yarn.native import Trial, bars_of, cluster_settings, summary_of, worst_of
from eps.cluster.devcluster.settings import ClusterSettings

HISTORY = [{"clock": clock, "seconds": 0.5 + clock, "loss": 1.0} for clock in range(3)]


def trial(name: str, feedback: float | None, **changes: Any) -> Trial:
    found = Trial(name, {"learning_rate": 0.1, "l2": 0}, Future(), submitted_s=100.0, **changes)
    found.feedback = feedback
    return found


def report(**changes: Any) -> dict[str, Any]:
    counted = {"asked": 2, "drained": 2, "late": 0, "lost": 0, "withdrawn": 0, "warned": 0, "drain_s": {"1": 0.7}}
    found = {"state": "finished", "history": HISTORY, "metrics": {"train_loss": 0.25}, "model_sha256": "a"}
    found |= {"changes": [{"phase": "released", "bytes_moved": 5}, {"phase": "aborted", "bytes_moved": 0}]}
    return {**found, "losses": [], "evictions": counted, "ledger": {"lost": 0, "applied_twice": 0}, **changes}


def test_worst_is_ended_where_more_than_the_threshold_are_in_the_training_phase() -> None:
    good, bad, young = trial("good", 0.1), trial("bad", 2.0), trial("young", None)
    gone, stopped = trial("gone", 9.0, ended_s=1.0), trial("stopped", 9.0, stopped=True)
    two = [good, bad, young, gone, stopped]
    assert worst_of(two, 2) is None
    assert worst_of([*two, trial("third", 0.5)], 2) is bad
    assert worst_of([*two, trial("broken", float("inf"))], 2).name == "broken"  # type: ignore[union-attr]
    assert worst_of([*two, trial("third", 0.5)], 0) is None


def test_times_count_from_the_submission() -> None:
    found = trial("one", 0.5, began_s=103.0, ended_s=110.0, report=report())
    entry = found.entry(2, 90.0)
    assert (entry["submitted_s"], entry["first_iteration_s"], entry["feedback_s"]) == (10.0, 3.5, 4.5)
    assert (entry["ended_s"], entry["preempted"], entry["moves"], entry["bytes_moved"]) == (20.0, 2, 1, 5)
    # One that was ended before anybody saw it begin has no times.
    ended = report(state="killed", history=[], ledger={"lost": None})
    unseen = trial("two", None, ended_s=110.0, stopped=True, report=ended)
    told = unseen.entry(2, 90.0)
    assert (told["state"], told["first_iteration_s"], told["feedback_s"]) == ("stopped", None, None)


def test_summary_has_medians_of_what_was_measured_and_whatever_was_lost() -> None:
    found = [
        trial("one", 0.5, began_s=103.0, ended_s=110.0, report=report()).entry(2, 90.0),
        trial("two", 0.5, began_s=105.0, ended_s=111.0, report=report(losses=[{}])).entry(2, 90.0),
        trial("three", 0.5, ended_s=112.0, stopped=True, report=report(state="killed", history=[])).entry(2, 90.0),
    ]
    told = summary_of(22.0, found)
    assert (told["makespan_s"], told["finished"], told["stopped"], told["best_loss"]) == (22.0, 2, 1, 0.25)
    assert (told["first_iteration_median_s"], told["longest_drain_s"], told["preempted"]) == (4.5, 0.7, 6)
    assert told["lost"] == 1
    bars = bars_of({"cases": {"plugin": told}, "other_models": 0})
    assert [bar.passed for bar in bars] == [False, True]


def test_only_the_clusters_of_one_case_have_the_plugin() -> None:
    secret = Path("/s")
    static = cluster_settings(None, "http://h:1", secret)
    plugin = cluster_settings(Path("/p.jar"), "http://h:1", secret)
    assert static == ClusterSettings(no_preemption=("default",), properties=static.properties)
    assert (plugin.policies, plugin.rm_class_path) == ((native.POLICY,), ("/p.jar",))
    assert ("eps.hscheduler.url", "http://h:1") in plugin.properties
    assert set(static.properties) < set(plugin.properties)


def test_case_that_there_is_not_is_refused() -> None:
    assert native._cases("plugin") == ("plugin",)
    with pytest.raises(argparse.ArgumentTypeError, match="static, plugin"):
        native._cases("plugin,other")


def test_feedback_counts_from_when_containers_are_free() -> None:
    waited = {"started_s": 20.0, "first_iteration_s": 22.0, "arrived_s": 1.0, "early_feedback_s": 21.5}
    first = {"started_s": 1.5, "first_iteration_s": 4.0, "arrived_s": 1.0, "early_feedback_s": 3.25}
    never = {"started_s": None, "first_iteration_s": None, "arrived_s": 1.0, "early_feedback_s": None}
    trials = [{"job_id": name, **each} for name, each in (("c", waited), ("a", first), ("b", never))]
    waits = feedback.waits_of({"trials": trials})
    assert [(each["job_id"], each["to_first_iteration_s"], each["to_feedback_s"]) for each in waits] == [
        ("a", 2.5, 2.75),
        ("c", 2.0, 2.5),
    ]
    summary = feedback.summary_of(waits)
    assert summary["all"]["to_feedback_s"]["max"] == 2.75 and summary["later"]["to_feedback_s"]["values"] == [2.5]
