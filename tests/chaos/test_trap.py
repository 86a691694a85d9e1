"""Traps of tests spring when they should, once."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import pytest

from eps.core import events as e
from eps.core.reconfig import Operation, Phase
from eps.errors import ConfigError
from tests.core.scripted import ADD_SERVER, ADD_WORKER, REMOVE_WORKER, running
from tools.chaos.trap import (
    BYSTANDER,
    DONOR,
    MASTER,
    MASTER_LATE,
    MASTERS,
    RECEIVER,
    SPRUNG,
    Trap,
    Traps,
    parse,
)


def test_traps_are_parsed_and_nonsense_is_refused() -> None:
    assert parse("job:finished:master-late") == (Trap(None, e.JobState.FINISHED, MASTER_LATE),)
    assert parse("add-servers:committed:donor") == (Trap(Operation.ADD_SERVERS, Phase.COMMITTED, DONOR),)
    for text in (
        "add-servers:committed",
        "explode:committed:donor",
        "add-servers:soon:donor",
        "follow:copied:me",
        "job:copied:master",
        "job:running:donor",
    ):
        with pytest.raises(ConfigError, match="EPS_TRAP"):
            parse(text)


def test_victims_are_found_in_the_plan() -> None:
    master = running()
    plan = master.ask(ADD_WORKER)
    victims = {v: Trap(Operation.ADD_WORKERS, Phase.PROPOSED, v).member(plan) for v in (DONOR, RECEIVER, BYSTANDER)}
    assert victims == {DONOR: "worker-2", RECEIVER: "worker-4", BYSTANDER: "worker-1"}
    master = running()
    plan = master.ask(REMOVE_WORKER)
    assert Trap(Operation.REMOVE_WORKERS, Phase.PROPOSED, DONOR).member(plan) == "worker-3"


def test_a_trap_waits_for_its_plan_and_its_phase_and_for_the_right_moment(tmp_path: Path) -> None:
    (tmp_path / "job").mkdir()
    traps = Traps(parse("add-servers:prepared:receiver,remove-workers:proposed:master"), tmp_path / "job")
    master = running()
    plan = master.ask(ADD_SERVER)
    traps.look(master.state, True)
    assert plan.phase is Phase.PROPOSED and not list((tmp_path / "job" / SPRUNG).iterdir())


@pytest.fixture
def killed(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """Give what is killed: (process, signal)."""
    found: list[tuple[int, int]] = []
    monkeypatch.setattr(os, "kill", lambda pid, number: found.append((pid, number)))
    return found


ME = (os.getpid(), signal.SIGKILL)


def test_a_trap_that_has_sprung_is_not_set_again(tmp_path: Path, killed: list[tuple[int, int]]) -> None:
    text = "add-servers:proposed:master"
    master = running()
    master.ask(ADD_SERVER)
    first = Traps(parse(text), tmp_path)
    for _ in range(2):
        first.look(master.state, False)
    assert killed == [ME] and json.loads((tmp_path / SPRUNG / text).read_text()) == {"victim": "master", "plan": 1}
    # Another master of the job.
    Traps(parse(text), tmp_path).look(master.state, False)
    assert killed == [ME]


@pytest.mark.parametrize("victim", MASTERS)
def test_a_trap_of_the_job_waits_for_its_state(tmp_path: Path, killed: list[tuple[int, int]], victim: str) -> None:
    traps = Traps(parse(f"job:killed:{victim}"), tmp_path)
    master = running()
    for said in (False, True):
        traps.look(master.state, said)
    master.step(e.KillRequested("enough"))
    assert master.state.state is e.JobState.KILLED and not killed
    traps.look(master.state, victim == MASTER)
    assert not killed
    traps.look(master.state, victim != MASTER)
    assert killed == [ME]
