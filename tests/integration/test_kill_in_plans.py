"""A kill at every step of every kind of plan, with real processes: the model has the undisturbed job's bits.

The job master kills the victim itself when the plan enters the phase (:mod:`tools.chaos.trap`), so the moment is exact.
Every trap must spring, and :data:`OUTCOMES` has the outcome of each plan.  One job goes through all operations, with
the same victim in the same phase of each.  The tier ``all`` plays all of them, and each operation in a job of its own
as well; the gate plays each phase once, with a random victim, and the master in every phase of one job.
"""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from random import Random
from typing import Any

import pytest

import eps
from eps.core.events import JobState
from eps.core.reconfig import OPERATIONS, Operation, Phase
from tests.integration.conftest import RunUndisturbed
from tests.integration.test_operations import TIMEOUT_S, wait_for_clock
from tests.tiers import of_tier, sample, seed_of_run
from tools.chaos.master import chaos_master
from tools.chaos.trap import BYSTANDER, DONOR, MASTER, MASTER_LATE, MASTERS, RECEIVER, SPRUNG, VICTIMS
from tools.chaos.trap import JOB as JOB_STATE


def table(text: str) -> dict[tuple[str, str], dict[str, str]]:
    """Return (phase, victim) -> operation -> outcome."""
    head, *rows = [line.split() for line in text.strip().splitlines()]
    return {(row[0], row[1]): dict(zip(head[2:], row[2:], strict=True)) for row in rows}


PHASES = (Phase.PROPOSED, Phase.PREPARED, Phase.LISTS_UPDATED, Phase.COPIED, Phase.COMMITTED, Phase.SWITCHED)
JOB: dict[str, Any] = {
    "data": "sklearn:digits", "model": "dnn", "model_options": '{"hidden": 16}', "learning_rate": 0.01,
    "iterations": 250, "workers": 3, "servers": 3,
}  # fmt: skip
CHANGES = {operation: f"{operation}=1" for operation in OPERATIONS}
PLAYED = (*OPERATIONS, Operation.FOLLOW)
REMOVALS = (Operation.REMOVE_SERVERS, Operation.REMOVE_WORKERS)
#: Clocks from one change to the next.  A change takes some 25 clocks; a kill during it must not abort the next one,
#: because then that one's trap would not spring.
APART = 60
#: Outcome of a plan in whose phase a process is killed.
#:
#: - A master: the next one carries the plan out.
#: - A member, once all is copied: the plan is carried out, and the member is replaced.
#: - A member before that: the plan is aborted if it needs the member.  An addition and new followers need donors and
#:   receivers, and new members start so late that every crash is noticed first.  ``either``: a removal may have started
#:   its last step before the crash is noticed, and needs nothing more if a follower has all already.
OUTCOMES = table("""
    phase          victim       add-servers  add-workers  remove-servers  remove-workers  follow
    queued         master       released     released     released        released        released
    queued         master-late  released     released     released        released        released
    proposed       master       released     released     released        released        released
    proposed       master-late  released     released     released        released        released
    proposed       donor        aborted      aborted      either          either          aborted
    proposed       receiver     aborted      aborted      either          either          aborted
    proposed       bystander    aborted      aborted      either          either          either
    prepared       master       released     released     released        released        released
    prepared       master-late  released     released     released        released        released
    prepared       donor        aborted      aborted      either          either          aborted
    prepared       receiver     aborted      aborted      either          either          aborted
    prepared       bystander    either       either       either          either          either
    lists-updated  master       released     released     released        released        released
    lists-updated  master-late  released     released     released        released        released
    lists-updated  donor        either       either       either          either          either
    lists-updated  receiver     either       either       either          either          either
    lists-updated  bystander    either       either       either          either          either
    copied         master       released     released     released        released        released
    copied         master-late  released     released     released        released        released
    copied         donor        released     released     released        released        released
    copied         receiver     released     released     released        released        released
    copied         bystander    released     released     released        released        released
    committed      master       released     released     released        released        released
    committed      master-late  released     released     released        released        released
    committed      donor        released     released     released        released        released
    committed      receiver     released     released     released        released        released
    committed      bystander    released     released     released        released        released
    switched       master       released     released     released        released        released
    switched       master-late  released     released     released        released        released
    switched       donor        released     released     released        released        released
    switched       receiver     released     released     released        released        released
    switched       bystander    released     released     released        released        released
    released       master       released     released     released        released        released
    released       master-late  released     released     released        released        released
""")
#: A master can be killed where no member is at work yet, or any more, too.  Each of four plans has four of these.
OF_MASTERS = tuple(
    f"{OPERATIONS[2 * (number % 2) + turn]}:{phase}:{victim}"
    for number, phase in enumerate((Phase.QUEUED, *PHASES, Phase.RELEASED))
    for turn, victim in enumerate(MASTERS)
) + tuple(f"{JOB_STATE}:{state}:{victim}" for state in (JobState.EXPORTING, JobState.FINISHED) for victim in MASTERS)
#: A job may end before it asks for followers, so these have jobs of their own, in which a server is lost early.  The
#: gate plays some of them.
ALONE = tuple(
    (Operation.FOLLOW, phase, victim)
    for phase, victim in (
        (Phase.COPIED, DONOR),
        (Phase.COPIED, RECEIVER),
        (Phase.COMMITTED, DONOR),
        (Phase.COMMITTED, MASTER),
        (Phase.COMMITTED, RECEIVER),
        (Phase.SWITCHED, BYSTANDER),
        (Phase.SWITCHED, MASTER_LATE),
    )
)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "operation" in metafunc.fixturenames:
        cases = [(operation, phase, victim) for operation in PLAYED for phase in PHASES for victim in VICTIMS]
        metafunc.parametrize(("operation", "phase", "victim"), of_tier(metafunc.config, sample(ALONE, 3), cases))
    elif "phase" in metafunc.fixturenames:
        cases = [(phase, victim) for phase in PHASES for victim in VICTIMS]
        victims = Random(seed_of_run()).sample(VICTIMS, len(VICTIMS))
        of_each = [(phase, victims[number % len(victims)]) for number, phase in enumerate(PHASES)]
        metafunc.parametrize(("phase", "victim"), of_tier(metafunc.config, of_each, cases))


@pytest.fixture
def undisturbed(run_undisturbed: RunUndisturbed) -> dict[str, Any]:
    """Return the report of the undisturbed job."""
    return run_undisturbed(**JOB)


def play(
    undisturbed: dict[str, Any], traps: list[str], at: list[str], kill: str = "", **more: Any
) -> tuple[dict[str, dict[str, Any]], dict[str, Any]]:
    """Run a job with traps, all of which must spring; return what each one killed in which plan, and the report."""
    with chaos_master(",".join(traps)), eps.Job.start(name="trapped", at=at, **{**JOB, **more}) as job:
        if kill:
            wait_for_clock(job, 5)
            os.kill(next(m["pid"] for m in job.status()["members"] if m["name"] == kill), signal.SIGKILL)
        report = job.wait(TIMEOUT_S)
        sprung = {path.name: json.loads(path.read_text()) for path in (job.directory.path / SPRUNG).iterdir()}
    assert sorted(sprung) == sorted(traps)
    assert report["state"] == "finished", report["reason"]
    assert report["model_sha256"] == undisturbed["model_sha256"], sprung
    ledger = report["ledger"]
    assert (ledger["lost"], ledger["applied_twice"], ledger["applied"]) == (0, 0, ledger["expected"])
    assert all(change["phase"] in ("released", "aborted") for change in report["changes"]), report["changes"]
    return sprung, report


def judge(sprung: dict[str, dict[str, Any]], report: dict[str, Any], kill: str = "") -> None:
    """Compare plans, members and masters with the table."""
    outcomes = {change["plan_id"]: change["phase"] for change in report["changes"]}
    lost, masters = [kill] if kill else [], 0
    found = [loss["name"] for loss in report["losses"]]
    for trap, note in sprung.items():
        operation, phase, victim = trap.split(":")
        if operation == JOB_STATE:
            masters += 1
            continue
        outcome = outcomes[note["plan"]]
        expected = OUTCOMES[phase, victim][operation]
        assert outcome == expected or expected == "either", (trap, outcome, report["changes"])
        masters += victim in MASTERS
        # A new member whose plan is aborted has never been a member.
        newcomer = victim == RECEIVER and Operation(operation).adds and outcome == "aborted"
        # A leaving member may have reported that before the kill: then it is no member and no loss.
        leaves = operation in REMOVALS and (phase, victim) == (Phase.SWITCHED, DONOR)
        no_loss = newcomer or (leaves and note["victim"] not in found)
        lost += [] if victim in MASTERS or no_loss else [note["victim"]]
    assert report["generation"] == 1 + masters
    assert sorted(found) == sorted(lost), (sprung, report["losses"])
    assert lost or not report["went_back"], report["went_back"]


def test_a_kill_in_the_same_phase_of_all_plans_changes_no_bit(
    home: Path, undisturbed: dict[str, Any], phase: Phase, victim: str
) -> None:
    traps = [f"{operation}:{phase}:{victim}" for operation in CHANGES]
    at = [f"{20 + APART * n}:{change}" for n, change in enumerate(CHANGES.values())]
    judge(*play(undisturbed, traps, at))


def test_a_master_that_is_killed_in_every_phase_of_plans_and_at_the_end_changes_no_bit(
    home: Path, undisturbed: dict[str, Any]
) -> None:
    at = [f"{20 + APART * n}:{change}" for n, change in enumerate(CHANGES.values())]
    sprung, report = play(undisturbed, list(OF_MASTERS), at)
    judge(sprung, report)
    assert [h["loss"] for h in report["history"]] == [h["loss"] for h in undisturbed["history"]]


@pytest.mark.parametrize("checkpoint_every", ["", "10"], ids=["seed", "checkpoint"])
@pytest.mark.parametrize("moves", [Operation.ADD_SERVERS, Operation.REMOVE_SERVERS])
def test_a_kill_before_moved_partitions_have_followers_costs_only_time(
    home: Path,
    undisturbed: dict[str, Any],
    moves: Operation,
    checkpoint_every: str,
) -> None:
    # The donor in a plan that gives followers is the owner of a partition that has none.
    trap = f"{Operation.FOLLOW}:{Phase.PROPOSED}:{DONOR}"
    more = {"checkpoint_every": checkpoint_every} if checkpoint_every else {}
    _, report = play(undisturbed, [trap], [f"40:{CHANGES[moves]}"], **more)
    (loss,) = report["losses"]
    assert loss["back_to_clock"] in (range(0, loss["clock"] + 1, 10) if checkpoint_every else (0,))
    (back,) = report["went_back"]
    assert (back["to_clock"], back["lost"]) == (loss["back_to_clock"], {loss["name"]: loss["reason"]})


def test_a_kill_in_one_phase_of_one_plan_changes_no_bit(
    home: Path,
    undisturbed: dict[str, Any],
    operation: Operation,
    phase: Phase,
    victim: str,
) -> None:
    # Partitions lack their followers once a server is lost.
    follows = operation is Operation.FOLLOW
    at = [] if follows else [f"20:{CHANGES[operation]}"]
    trap = f"{operation}:{phase}:{victim}"
    kill = "server-2" if follows else ""
    judge(*play(undisturbed, [trap], at, kill), kill)
