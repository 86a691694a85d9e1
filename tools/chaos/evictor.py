"""Evictions of containers on this host: a warning, then a kill, as on a cluster that preempts.

:func:`announce` writes a file to the job's directory, which the job master of :mod:`tools.chaos.master` reads.  The
file stays and has the wall-clock time of the kill, so the next master of the job carries out the same eviction.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from eps.cluster.api import ContainerEvent, EvictionWarning
from eps.cluster.local import LocalResourceManager
from eps.storage.atomic import read_json, write_json_atomic

#: Folder of a job's directory, with a file for each announcement.
FOLDER = "evictions"
REASON = "is taken away by a test"


def announce(job_path: Path, containers: Sequence[str], in_s: float, *, carried_out: bool = True) -> None:
    """Evict containers of a running job together.

    Parameters
    ----------
    job_path : Path
        The job's directory.
    containers : sequence of str
        Ids of the containers, as in ``eps status --json``.
    in_s : float, seconds
        Time until the kill, which may be late by the interval at which a job master polls its resource manager.
    carried_out : bool
        False only warns.
    """
    folder = job_path / FOLDER
    folder.mkdir(exist_ok=True)
    what = {"containers": list(containers), "at_s": time.time() + in_s, "carried_out": carried_out}
    write_json_atomic(folder / f"{secrets.token_hex(8)}.json", what, sync=False)


@dataclass(frozen=True)
class _Due:
    at_s: float
    carried_out: bool


class EvictingResourceManager(LocalResourceManager):
    """A local resource manager that evicts containers as the files in a folder say.

    Parameters
    ----------
    folder : Path
    supervisor_fd, max_containers, adopted
        See :class:`~eps.cluster.local.LocalResourceManager`.
    """

    def __init__(
        self, folder: Path, supervisor_fd: int, max_containers: int = 0, adopted: Mapping[str, int] | None = None
    ) -> None:
        super().__init__(supervisor_fd, max_containers, adopted)
        self._folder = folder
        self._read_already: set[str] = set()
        self._due: dict[str, _Due] = {}

    def poll(self) -> list[ContainerEvent]:
        """Return the events since the last call, including warnings."""
        events = super().poll()
        now_s = time.time()
        warned = self._announced()
        for container_id, due in list(self._due.items()):
            if now_s >= due.at_s:
                del self._due[container_id]
                if due.carried_out:
                    self.kill(container_id)
        return events + [EvictionWarning(c, max(0.0, due.at_s - now_s), REASON) for c, due in warned.items()]

    def _announced(self) -> dict[str, _Due]:
        if not self._folder.is_dir():
            return {}
        found: dict[str, _Due] = {}
        for path in sorted(self._folder.glob("*.json")):
            if path.name not in self._read_already:
                self._read_already.add(path.name)
                what = read_json(path) or {}
                due = _Due(float(what["at_s"]), bool(what["carried_out"]))
                with self._lock:
                    found.update({c: due for c in what["containers"] if self._ledger.is_live(c)})
        self._due.update(found)
        return found
