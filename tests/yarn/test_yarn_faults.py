"""Faults of a real YARN and HDFS, and what job masters and users see of them."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.processes import kill_all
from tests.yarn import faults, unmanaged
from tests.yarn.in_java import InJava

if TYPE_CHECKING:
    from tests.yarn.hadoop import Hadoop


def test_a_node_that_shrinks_preempts_with_a_warning(java: InJava, tmp_path: Path) -> None:
    java(faults.preempted, tmp_path)


@pytest.mark.tier("all")
def test_a_restarted_resourcemanager_costs_nothing(java: InJava, tmp_path: Path, hadoop: Hadoop) -> None:
    java(faults.wish_before_the_restart, tmp_path)
    hadoop.restart("resourcemanager")
    java(faults.after_the_restart)


@pytest.mark.tier("all")
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
def test_a_container_killed_for_its_silence_hung_or_was_lost_with_its_node(
    java: InJava, tmp_path: Path, hadoop: Hadoop, number: signal.Signals
) -> None:
    """``tests/cluster/test_yarn_manager.py`` tests it on a fake."""
    host = java(faults.run_two, tmp_path)
    java(faults.kill_one_of_a_node_that_works)
    struck = hadoop.strike_node(host, number)
    try:
        java(faults.kill_one_of_a_node_that_is_lost)
    finally:
        kill_all(struck)
        hadoop.restart(hadoop.daemon_of(host))


def test_a_refused_request_does_not_affect_others(java: InJava, tmp_path: Path) -> None:
    java(faults.refused_ask, tmp_path)


def test_a_master_hears_that_its_application_was_killed(java: InJava, tmp_path: Path) -> None:
    java(faults.killed_by_its_user, tmp_path)


def test_refused_submissions_have_a_reason(java: InJava) -> None:
    java(faults.refused_submissions)


def test_an_unreachable_resourcemanager_is_named_with_its_setting(java: InJava) -> None:
    java(faults.nobody_listens)


def test_hdfs_in_safe_mode_says_what_to_do(java: InJava) -> None:
    java(faults.safe_mode)


def test_logs_outlive_their_writer(java: InJava) -> None:
    java(faults.logs)


@pytest.mark.tier("all")
def test_the_log_of_a_master_outlives_the_only_data_node(java: InJava, hadoop: Hadoop) -> None:
    java(faults.log_of_a_master)
    hadoop.kill("datanode")
    try:
        java(faults.log_without_data_node)
    finally:
        hadoop.restart("datanode")
    java(faults.log_afterwards)


def test_tokens_are_passed_on_without_the_masters_own(java: InJava) -> None:
    java(faults.tokens)


def test_a_master_that_hangs_is_replaced_and_the_next_finds_its_container(java: InJava) -> None:
    report, seen = java(unmanaged.in_a_container, Path(__file__).resolve().parents[2])
    assert (report.state, report.final_status, report.attempt) == ("FINISHED", "SUCCEEDED", 2)
    assert seen["attempt"] == 2 and set(seen["adopted"]) == {"container-0001"}
    assert seen["adopted"]["container-0001"].endswith("_01_000002")
    # Its only token speaks for the master alone.
    assert seen["tokens"] == 0
    assert seen["memory_mb"] < 250, seen
