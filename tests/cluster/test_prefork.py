"""A spare supervisor: one waits, it is given away once, and it ends with its owner."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from eps.cluster.supervisor import start
from eps.errors import ResourceError
from eps.job.prefork import SpareSupervisor
from eps.system.waits import wait_for

TIMEOUT_S = 20.0


def pid_of(warm: start.WarmSupervisor) -> int:
    return warm._process.pid


def is_there(pid: int) -> bool:
    return Path(f"/proc/{pid}").exists()


def test_the_spare_one_is_given_away_once() -> None:
    spare = SpareSupervisor()
    spare.refill()
    spare.refill()
    assert spare._spare is not None
    waiting = pid_of(spare._spare)
    first, second = spare.take(), spare.take()
    assert pid_of(first) == waiting
    assert pid_of(second) != waiting, "one that only begins"
    first.cancel()
    second.cancel()
    spare.close()


def test_it_is_ended_when_nobody_takes_it() -> None:
    spare = SpareSupervisor()
    spare.refill()
    assert spare._spare is not None
    pid = pid_of(spare._spare)
    spare.close()
    assert not is_there(pid)
    spare.refill()
    assert spare._spare is None, "who has closed it wants no more"
    spare.close()


def test_it_ends_with_a_process_that_is_killed() -> None:
    code = (
        "from eps.job.prefork import SpareSupervisor; import signal\n"
        "spare = SpareSupervisor(); spare.refill(); print(spare._spare._process.pid, flush=True); signal.pause()"
    )
    owner = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert owner.stdout is not None
    pid = int(owner.stdout.readline())
    os.kill(owner.pid, signal.SIGKILL)
    owner.wait(TIMEOUT_S)
    owner.stdout.close()
    wait_for(lambda: not is_there(pid), TIMEOUT_S, "the end of the spare supervisor")


def test_one_that_cannot_be_had_is_told_to_who_needs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(entry_points: Mapping[str, str]) -> start.WarmSupervisor:
        raise ResourceError("no more processes")

    monkeypatch.setattr("eps.job.prefork.WarmSupervisor", refuse)
    spare = SpareSupervisor()
    spare.refill()
    with pytest.raises(ResourceError, match="no more processes"):
        spare.take()
    spare.close()
