"""Collects the trained model from the owners of its partitions and writes it; the only bytes that the master touches.

It reads partition by partition into one file on disk, so that the master never holds a model in memory twice.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from eps.core.checkpoints import Checkpoints
from eps.core.membership import Membership
from eps.data.dataset import open_dataset
from eps.errors import ProtocolError, StorageError
from eps.master.records import Ledger
from eps.ml.metrics import exact_metrics
from eps.net.arrays.api import Message, Van
from eps.net.messages.exchange import parse_header, simple
from eps.spec.model_file import write_model
from eps.spec.runtime import Runtime

EXPORT_TIMEOUT_S = 300.0


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
