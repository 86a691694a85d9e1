"""Export of a trained model: collect it from the servers, evaluate it, upload it.

The export reads one partition after the other into one array and writes one file.  Only here does the master touch
parameters.

A cluster's file system may carry out a request after its client has exited.  So an upload is cancelled once the job no
longer needs it, and the job does not end before the upload has: afterwards a client may remove the job's files there.
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
#: How long a job that ends waits for a cancelled upload; it stops at once unless it waits for a DataNode.
BRINGING_S = 10.0


@dataclass(frozen=True, slots=True)
class Exported:
    """The result of an export."""

    model_sha256: str
    ledger: Ledger
    test_metrics: dict[str, float]


def export(runtime: Runtime, membership: Membership, van: Van, path: Path) -> Exported:
    """Write the model of a trained job to ``path`` (.npz) and measure it on the test data.

    Raises
    ------
    ProtocolError
        The answer of an owner is not its partition at the last clock.
    PeerUnavailableError
        An owner cannot be reached.
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
                    f"{owner} sent partition {partition} at clock {found.clock}; expected {settings.iterations}"
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
    """Return why there is no trained model, and from where the training can be resumed."""
    if not isinstance(error, StorageError):
        return f"the model could not be exported: {error}"
    left = "there is no checkpoint, so eps resume would train from the start"
    if checkpoints.complete:
        left = f"eps resume trains again from the checkpoint of clock {checkpoints.complete[-1].clock}"
    return f"the trained model could not be written: {error}; {left}"


def why_no_report(error: StorageError, model: Path | None, before: str) -> str:
    """Return why there is no report.

    Parameters
    ----------
    error : StorageError
    model : Path or None
        The trained model; None if there is none.
    before : str
        Why the job failed before that; empty if it did not.
    """
    text = f"the report cannot be written: {error}"
    if before:
        return f"{before}; {text}"
    return text if model is None else f"{text}; the job is trained, and its model is {model}"


def test_metrics(runtime: Runtime, tensors: dict[str, np.ndarray]) -> dict[str, float]:
    """Return the exact metrics of a model on the job's test data; empty if there is no test data."""
    if not runtime.shape.test_rows:
        return {}
    features, target = open_dataset(runtime.dataset_dir).load_test()
    scores = runtime.model.decision(tensors, features)
    return exact_metrics(runtime.model.task_for(runtime.model.chosen), scores, target)


class Exporter:
    """Exports the model of a job, on a new thread for each attempt.

    Parameters
    ----------
    runtime : Runtime
    van : Van
    path : Path
        File of the model on this machine.
    bring : callable
        Uploads that file to where it outlives this machine; raises StorageError.  It polls
        :func:`eps.system.interrupt.raise_if_stopped`.
    state : Job
    changed : Condition
        Guards ``state``.
    put : callable
        Takes the events that tell the outcome.
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
        #: Why the upload waits; empty if it does not.
        self._waits = ""
        #: Attempts write the same file, so they run one after the other.
        self._exporting = threading.Lock()
        #: Held during an upload.
        self._bringing = threading.Lock()
        #: The exported model in the file, and the incarnation of the job that trained it.
        self._made: tuple[int, Exported] | None = None

    @property
    def waits(self) -> str:
        """Why the upload waits; empty if it does not."""
        return self._waits if self._state.state is JobState.EXPORTING else ""

    def start(self, number: int) -> None:
        """Start attempt ``number``; its outcome is an event."""
        threading.Thread(target=self.export, args=(number,), name="export", daemon=True).start()

    def export(self, number: int) -> None:
        """Export and report the outcome, unless the job no longer waits for this attempt."""
        try:
            with self._exporting:
                membership = self._wanted(number)
                if membership is None:
                    return
                found = self._export_once(membership)
                self._bring_until_stopped(number)
            # Through JSON, because the log of events takes no NumPy numbers.
            event: e.Event = e.ExportDone(json.loads(json.dumps(dataclasses.asdict(found))), number)
        except Exception as error:
            # The user's model is evaluated here and may raise anything; the job must learn that the export failed.
            if self._wanted(number) is None:
                logger.info("M export %d is no longer needed: %s", number, error)
                return
            logger.exception("M the export failed")
            with self._changed:
                event = e.ExportFailed(why_no_model(error, self._state.checkpoints), number)
        self._put(event)

    def close(self, patience_s: float) -> None:
        """Wait at most ``patience_s`` seconds for an upload; called when the job has ended and starts no more."""
        if not self._bringing.acquire(timeout=patience_s):
            logger.warning("M the upload of the model has not ended within %g s: a partial file may stay", patience_s)
            return
        self._bringing.release()

    def _wanted(self, number: int) -> Membership | None:
        """Return the membership to export from; None if the job no longer waits for this attempt."""
        with self._changed:
            return self._state.membership if self._state.export.counts(number) else None

    def _export_once(self, membership: Membership) -> Exported:
        """Write and evaluate the model, unless that was done in the same incarnation of the job."""
        if self._made is None or self._made[0] != membership.incarnation:
            self._waits = ""
            self._made = membership.incarnation, export(self._runtime, membership, self._van, self.path)
        return self._made[1]

    def _bring_until_stopped(self, number: int) -> None:
        look = partial(self._look, number)
        with self._bringing, interrupt.stopped_by(look), telling(self._tell):
            # Checked with the lock held: from here on, close() waits for the upload.
            look()
            self._bring()
            self._waits = ""

    def _look(self, number: int) -> None:
        if self._wanted(number) is None:
            raise StorageError("the upload of the model was cancelled: the job no longer waits for it")

    def _tell(self, why: str) -> None:
        self._waits = why
