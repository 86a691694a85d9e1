"""Traps of tests spring when they should, once."""

from __future__ import annotations

from pathlib import Path

import pytest

from eps.chaos.trap import BYSTANDER, DONOR, MASTER, RECEIVER, SPRUNG, Trap, Traps, parse, traps_of
from eps.core.reconfig import Operation, Phase
from eps.errors import ConfigError
from tests.core.scripted import ADD_SERVER, ADD_WORKER, REMOVE_WORKER, running


def test_traps_are_parsed_and_nonsense_is_refused() -> None:
    assert parse("add-servers:committed:donor") == (Trap(Operation.ADD_SERVERS, Phase.COMMITTED, DONOR),)
    for text in ("add-servers:committed", "explode:committed:donor", "add-servers:soon:donor", "follow:copied:me"):
        with pytest.raises(ConfigError, match="EPS_TRAP"):
            parse(text)


def test_without_a_word_there_are_no_traps(tmp_path: Path) -> None:
    assert traps_of("", tmp_path) is None
    assert not (tmp_path / SPRUNG).exists()


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


def test_a_trap_that_has_sprung_is_not_set_again(tmp_path: Path) -> None:
    text = "add-servers:proposed:master"
    folder = tmp_path / SPRUNG
    folder.mkdir()
    (folder / text).write_text(MASTER)
    master = running()
    master.ask(ADD_SERVER)
    Traps(parse(text), tmp_path).look(master.state, False)
