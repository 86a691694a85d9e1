"""The end of a trained job: its model is made, and brought to where the next job master is, beside the owner thread.

What a cluster's file system was asked for it may do when whoever asked has ended.  So what is brought is given up when
nobody waits for it any more, and the job does not end before that is over: whoever attends to it then removes what it
has there.
"""

from __future__ import annotations

import dataclasses
import json
import logging
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path

from eps.core import events as e
from eps.core.events import JobState
from eps.core.job import Job
from eps.core.membership import Membership
from eps.errors import StorageError
from eps.master.export import Exported, export, why_no_model
from eps.net.arrays.api import Van
from eps.spec.runtime import Runtime
from eps.storage.waits import telling
from eps.system import interrupt

logger = logging.getLogger(__name__)

#: At its end a job waits so long for what is being brought: that is given up at once, but not while a DataNode answers.
BRINGING_S = 10.0


class Exporter:
    """Exports the model of a job, on a thread for each try.

    Parameters
    ----------
    runtime : Runtime
    van : Van
    path : Path
        Where the model is written on this machine.
    bring : callable
        Brings it from there to where it outlives this machine; raises a StorageError.  It heeds
        (:func:`eps.system.interrupt.heed`) whether anybody still wants that.
    state : Job
    changed : Condition
        Guards it.
    put : callable
        Takes the events that say how it went.
    """

    def __init__(
        self,
        runtime: Runtime,
        van: Van,
        path: Path,
        bring: Callable[[], None],
        state: Job,
        changed: threading.Condition,
        put: Callable[[e.Event], None],
    ) -> None:
        self._runtime = runtime
        self._van = van
        self._path = path
        self._bring = bring
        self._state = state
        self._changed = changed
        self._put = put
        #: Why the model cannot be brought for now.
        self._waits = ""
        #: Exports write one file, one after the other: what is there at the end is of the one that counts.
        self._exporting = threading.Lock()
        #: Held while something is brought.
        self._bringing = threading.Lock()
        #: The model that the file has, and the incarnation of the job whose it is.
        self._made: tuple[int, Exported] | None = None

    @property
    def waits(self) -> str:
        """Why the model cannot be brought for now; empty where nothing is waited for."""
        return self._waits if self._state.state is JobState.EXPORTING else ""

    def start(self, number: int) -> None:
        """Begin the export of that number, whose end is an event."""
        threading.Thread(target=self.export, args=(number,), name="export", daemon=True).start()

    def export(self, number: int) -> None:
        """Export, and put how that ended; nothing where the job does not wait for it any more."""
        try:
            with self._exporting:
                membership = self._wanted(number)
                if membership is None:
                    return
                found = self._export_once(membership)
                self._bring_heeding(number)
            # As JSON says it: the event is logged, and has no place for NumPy's numbers.
            event: e.Event = e.ExportDone(json.loads(json.dumps(dataclasses.asdict(found))), number)
        except Exception as error:
            # A user's model is evaluated here and may raise anything; the job must not wait for an export that died.
            if self._wanted(number) is None:
                logger.info("M export %d is given up: %s", number, error)
                return
            logger.exception("M the export failed")
            with self._changed:
                event = e.ExportFailed(why_no_model(error, self._state.checkpoints), number)
        self._put(event)

    def close(self, patience_s: float) -> None:
        """Wait for what is being brought, for so long, in seconds; called when the job has ended: nothing else will."""
        if not self._bringing.acquire(timeout=patience_s):
            logger.warning("M what brings the model does not end within %g s: something may be left of it", patience_s)
            return
        self._bringing.release()

    def _wanted(self, number: int) -> Membership | None:
        """Return whom an export asks; None where the job does not wait for that one any more."""
        with self._changed:
            return self._state.membership if self._state.export.counts(number) else None

    def _export_once(self, membership: Membership) -> Exported:
        """Write and measure the model of a job that has gone back as often, unless that is done."""
        if self._made is None or self._made[0] != membership.incarnation:
            self._waits = ""
            self._made = membership.incarnation, export(self._runtime, membership, self._van, self._path)
        return self._made[1]

    def _bring_heeding(self, number: int) -> None:
        look = partial(self._look, number)
        with self._bringing, interrupt.heeding(look), telling(self._tell):
            # What is begun from now on, whoever ends the job waits for.
            look()
            self._bring()
            self._waits = ""

    def _look(self, number: int) -> None:
        if self._wanted(number) is None:
            raise StorageError("the model is not brought: the job does not wait for it any more")

    def _tell(self, why: str) -> None:
        self._waits = why
