"""The end of a trained job: its model is collected, measured, and brought to where the next job master is.

The export reads partition by partition into one file on disk, so that the master never holds a model in memory twice;
these are the only bytes of the parameters that it touches.

What a cluster's file system was asked for it may do when whoever asked has ended.  So what is brought is given up when
nobody waits for it any more, and the job does not end before that is over: its clients then removes what it
has there.
"""

from __future__ import annotations

import dataclasses
import json
import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np

from eps.core import events as e
from eps.core.checkpoints import Checkpoints
from eps.core.events import JobState
from eps.core.job import Job
from eps.core.membership import Membership
from eps.data.dataset import open_dataset
from eps.errors import ProtocolError, StorageError
from eps.master.records import Ledger
from eps.ml.metrics import exact_metrics
from eps.net.arrays.api import Message, Van
from eps.net.messages.exchange import parse_header, simple
from eps.spec.model_file import write_model
from eps.spec.runtime import Runtime
from eps.storage.api import telling
from eps.system import interrupt

logger = logging.getLogger(__name__)

EXPORT_TIMEOUT_S = 300.0
#: At its end a job waits so long for what is being brought: that is given up at once, but not while a DataNode answers.
BRINGING_S = 10.0


@dataclass(frozen=True, slots=True)
class Exported:
    """What the export found."""

    model_sha256: str
    ledger: Ledger
    test_metrics: dict[str, float]


def export(runtime: Runtime, membership: Membership, van: Van, path: Path) -> Exported:
    """Write the model of a trained job to ``path`` (.npz) and measure it on the test data.

    Raises
    ------
    ProtocolError
        An owner answered with something else than its partition at the last clock.
    PeerUnavailableError
        An owner has gone.
    """
    space, settings = runtime.key_space, runtime.settings
    ledger = Ledger(expected=settings.iterations * settings.num_splits * settings.num_partitions)
    flat = np.empty(space.num_keys, np.float32)
    connections = {server: van.connect(membership.addresses[server]) for server in membership.servers}
    try:
        for partition, owner in enumerate(membership.partitions.owners):
            request = Message(simple("export_request", partition=partition))
            reply = connections[owner].request(request).result(EXPORT_TIMEOUT_S)
            found = parse_header(reply).export_reply
            start, stop = runtime.ranges[partition]
            if found.clock != settings.iterations or len(reply.arrays) != 1 or len(reply.arrays[0]) != stop - start:
                raise ProtocolError(
                    f"{owner} gave partition {partition} at clock {found.clock}; expected {settings.iterations}"
                )
            flat[start:stop] = reply.arrays[0]
            ledger = ledger.plus(found.applied, found.duplicates_refused, found.lost, found.applied_twice)
    finally:
        for connection in connections.values():
            connection.close()
    tensors = space.unpack(flat)
    digest = write_model(path, runtime, tensors)
    return Exported(digest, ledger, test_metrics(runtime, tensors))


def why_no_model(error: Exception, checkpoints: Checkpoints) -> str:
    """Return why there is no trained model, and what of the training can be had again all the same."""
    if not isinstance(error, StorageError):
        return f"the model could not be exported: {error}"
    left = "there is no checkpoint, so it would be trained anew"
    if checkpoints.complete:
        left = f"it can be had again from the checkpoint of clock {checkpoints.complete[-1].clock}"
    return f"the trained model could not be written: {error}; {left}"


def why_no_report(error: StorageError, model: Path | None, before: str) -> str:
    """Return why there is no report; ``model`` is where the trained model is, ``before`` why the job ended earlier."""
    text = f"the report cannot be written: {error}"
    if before:
        return f"{before}; {text}"
    return text if model is None else f"{text}; the job is trained, and its model is {model}"


def test_metrics(runtime: Runtime, tensors: dict[str, np.ndarray]) -> dict[str, float]:
    """Return the exact metrics of a model on the job's test data; empty where there is none."""
    if not runtime.shape.test_rows:
        return {}
    features, target = open_dataset(runtime.dataset_dir).load_test()
    scores = runtime.model.decision(tensors, features)
    return exact_metrics(runtime.model.task_for(runtime.model.chosen), scores, target)


class Exporter:
    """Exports the model of a job, on a thread for each try.

    Parameters
    ----------
    runtime : Runtime
    van : Van
    path : Path
        Where the model is written on this machine.
    bring : callable
        Brings it from there to where it outlives this machine; raises a StorageError.  It polls
        :func:`eps.system.interrupt.raise_if_stopped`.
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
        self.path = path
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
                self._bring_until_stopped(number)
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
            self._made = membership.incarnation, export(self._runtime, membership, self._van, self.path)
        return self._made[1]

    def _bring_until_stopped(self, number: int) -> None:
        look = partial(self._look, number)
        with self._bringing, interrupt.stopped_by(look), telling(self._tell):
            # What is begun from now on, whoever ends the job waits for.
            look()
            self._bring()
            self._waits = ""

    def _look(self, number: int) -> None:
        if self._wanted(number) is None:
            raise StorageError("the model is not brought: the job does not wait for it any more")

    def _tell(self, why: str) -> None:
        self._waits = why
