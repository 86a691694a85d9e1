"""A job that takes checkpoints; each that is complete is compared with the oracle."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from eps.core import events as e
from eps.core import messages as m
from eps.core.checkpoints import Checkpoints, Schedule, Timetable, checkpoint_name
from eps.core.events import ENDED_STATES
from tests.sim.job import SimJob
from tests.sim.mortal import MortalJob
from tests.sim.wire import oracle

#: Longest duration of the last step of a checkpoint.
FINISH_S = 0.1


class CheckpointedJob(SimJob):
    """A job with a checkpoint every few clocks.

    Parameters
    ----------
    every : int
        Clocks.
    """

    def __init__(self, *details: Any, every: int, **more: Any) -> None:
        super().__init__(*details, **more)
        settings = self.settings
        # Every second job keeps only one checkpoint, the only one that it can restore.
        keep = 1 + every % 2
        self.master.checkpoints = Checkpoints(
            Timetable(Schedule(every), settings.iterations), settings.num_partitions, keep
        )
        #: Name of each stored checkpoint -> partition -> part.
        self.complete: dict[str, dict[int, m.CheckpointPartWritten]] = {}
        #: The latest finished checkpoint, and the others that are kept.
        self._kept: tuple[int, set[str]] = (0, set())

    def _execute(self, commands: Sequence[e.Command]) -> None:
        super()._execute(commands)
        for command in commands:
            if isinstance(command, e.FinishCheckpoint):
                self._check(command)
                name = checkpoint_name(command.epoch, command.clock)
                self.complete[name] = {part.partition: part for part in command.parts}
                self._kept = command.checkpoint_id, {*command.kept, name}
                done = e.CheckpointDone(command.checkpoint_id)
                self.at(self.share() * FINISH_S, lambda done=done: self._finished(done))  # type: ignore[misc]
            elif isinstance(command, e.RemoveEarlier):
                checkpoint_id, kept = self._kept
                assert command.checkpoint_id == checkpoint_id
                self.complete = {name: parts for name, parts in self.complete.items() if name in kept}

    def parts_of(self, checkpoint: str) -> Mapping[int, m.CheckpointPartWritten]:
        return self.complete[checkpoint] if checkpoint else {}

    def _finished(self, done: e.CheckpointDone) -> None:
        if self.master.state not in ENDED_STATES:
            self.count("checkpoint")
            self.on_event(done)

    def _check(self, command: e.FinishCheckpoint) -> None:
        """Every partition is there once; under BSP at the clock, with the oracle's parameters."""
        assert [part.partition for part in command.parts] == list(range(self.settings.num_partitions))
        history = [record.clock for record in self.master.progress.history]
        assert history[: command.first_clock] == list(range(command.first_clock))
        for part in command.parts:
            assert part.clock >= command.clock
            assert part.applied == sum(max(0, clock) for clock in part.next_clock)
        if self.settings.bsp:
            assert {clock for part in command.parts for clock in part.next_clock} == {command.clock}
            expected = oracle(replace(self.settings, iterations=command.clock))
            assert {part.partition: int(part.checksum) for part in command.parts} == expected


class MortalCheckpointedJob(CheckpointedJob, MortalJob):
    """A job with checkpoints and masters that die."""
