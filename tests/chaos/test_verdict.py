"""What is wrong with a job is found, and nothing else."""

from __future__ import annotations

import json
from typing import Any

from eps.master.records import line_of
from tools.chaos.verdict import (
    Verdict,
    count_recoveries,
    faults_of_report,
    longest_iteration_s,
    summary_of,
    table_head,
    table_row,
)

CLEAN: dict[str, Any] = {
    "state": "finished",
    "model_sha256": "ab" * 32,
    "ledger": {"expected": 10, "applied": 10, "lost": 0, "applied_twice": 0},
    "history": [{"seconds": 0.0}, {"seconds": 0.1}, {"seconds": 0.7}, {"seconds": 0.8}],
}


def test_a_clean_report_has_no_faults() -> None:
    assert faults_of_report(CLEAN, "ab" * 32, bsp=True) == []


def test_another_model_is_a_fault_under_bsp_only() -> None:
    assert "its model is abab" in faults_of_report(CLEAN, "cd" * 32, bsp=True)[0]
    assert faults_of_report(CLEAN, "cd" * 32, bsp=False) == []


def test_a_ledger_that_is_not_clean_is_a_fault() -> None:
    ledger = {"expected": 10, "applied": 9, "lost": 2, "applied_twice": 1}
    found = faults_of_report({**CLEAN, "ledger": ledger}, "ab" * 32, bsp=True)
    assert found == ["ledger: lost is 2", "ledger: applied_twice is 1", "ledger: 9 applied of 10"]


def test_a_ledger_that_nobody_wrote_is_a_fault() -> None:
    assert faults_of_report({**CLEAN, "ledger": {"expected": 10, "applied": None}}, "ab" * 32, bsp=True)


def test_a_job_that_failed_says_why_and_no_more() -> None:
    report = {"state": "failed", "reason": "no luck", "model_sha256": ""}
    assert faults_of_report(report, "ab" * 32, bsp=True) == ["it failed: no luck"]


def test_the_longest_iteration_is_the_longest_time_between_two_clocks() -> None:
    assert round(longest_iteration_s(CLEAN), 6) == 0.6
    assert longest_iteration_s({"history": []}) == 0.0


def test_recoveries_are_counted_in_the_log() -> None:
    record = {"kind": "taken-over", "lost": ["worker-1"], "version": 2, "clock": 7, "at_s": 1.5}
    lines = [line_of(record), line_of({**record, "kind": "rolled-back"}), line_of({**record, "lost": ["server-1"]})]
    assert count_recoveries("".join(f"07:55:18.950 I eps.master.main: M {line}\n" for line in lines)) == 2


def test_a_row_shows_what_happened_and_the_verdict_is_json() -> None:
    verdict = Verdict(3, "adam", {"kill-worker": 2, "add-server": 1}, recoveries=2, faults=("it hangs",))
    row = table_row(verdict)
    assert "3: add-server=1 kill-worker=2" in row and row.endswith("FAILED")
    assert table_row(Verdict(3, "adam")).endswith("ok")
    assert table_head().startswith("seed") and table_head().endswith("verdict")
    assert json.loads(json.dumps(verdict.to_dict()))["num_events"] == 3


def test_what_was_judged_is_in_the_row_the_json_and_the_summary() -> None:
    good = Verdict(3, "adam", lost=0, applied_twice=0, model_sha256="ab" * 32, undisturbed_sha256="ab" * 32)
    other = Verdict(4, "adam", lost=2, applied_twice=1, model_sha256="cd" * 32, undisturbed_sha256="ab" * 32)
    hung = Verdict(5, "adam", hung=True, undisturbed_sha256="ab" * 32, faults=("it hangs",))
    assert table_row(good).split()[-4:] == ["0", "0", "ab" * 6, "ok"]
    assert table_row(hung).split()[-4:] == ["-", "-", "-", "FAILED"], "who has no report says nothing"
    assert good.to_dict()["same_model"] and not other.to_dict()["same_model"] and not hung.to_dict()["same_model"]
    summary = summary_of([good, other, hung])
    assert (summary["updates lost"], summary["applied twice"], summary["hung"]) == (2, 1, 1)
    assert summary["models as undisturbed"] == 1 and summary["failed"] == 1
