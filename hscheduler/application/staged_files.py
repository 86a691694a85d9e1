"""What travels to an application: what its master is to do, and the local files that its jobs read."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from eps.data.numpy_files import idx_labels_beside
from eps.errors import ConfigError, StorageError
from eps.storage.locations import RemotePath, is_remote
from hscheduler.service.main import ServiceSettings

#: Name in the master's container of what is for it alone: its orders, the service's certificates, files of models.
SERVICE_FOLDER = "eps-service"
ORDERS_FILE = "orders.json"
#: Of the application's shared folder: where the service listens.
SERVICE_FILE = "service.json"
#: The sweep's name in the service of an application that ends with it.
SWEEP = "sweep"
#: Types of applications: neither is a job of its own for a scheduler that counts those.
SWEEP_TYPE, SERVICE_TYPE = "EPS-SWEEP", "EPS-SCHEDULER"
#: Where nothing says when jobs write checkpoints: from them they go on where the application's master was lost.
CHECKPOINT_EVERY = "30s"


@dataclass(frozen=True)
class ServiceOrders:
    """The service that an application's master is."""

    settings: ServiceSettings
    #: As of :meth:`hscheduler.spec.Spec.tables`: the application ends with this sweep; None: clients submit to it.
    sweep: Mapping[str, Any] | None = None
    #: Seconds that a job waits for a container of YARN; 0.0: it waits for ever.
    container_timeout_s: float = 0.0

    def to_bytes(self) -> bytes:
        """Return what :meth:`read` takes."""
        return json.dumps(dataclasses.asdict(self)).encode("utf-8")

    @classmethod
    def read(cls, folder: Path) -> ServiceOrders:
        """Return the orders in what was brought to a container.

        Raises
        ------
        ConfigError
            There are none.
        """
        try:
            values = json.loads((folder / ORDERS_FILE).read_text(encoding="utf-8"))
            return cls(**{**values, "settings": ServiceSettings(**values["settings"])})
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise ConfigError(f"{folder / ORDERS_FILE} does not say what this service is: {error!r}") from None


#: Settings that are one file each where they are no number, no part of the data and no name of scikit-learn's.
_FILES = ("labels", "test", "test_labels", "init")
_PIECE_BYTES = 1 << 20
#: Folder of models' files, in the application master's container.
_MODELS = "models"


def stage(tables: Mapping[str, Any], cache: RemotePath) -> tuple[dict[str, Any], dict[str, Path]]:
    """Return a sweep's tables with places that the application finds, and the files that its master is to be brought.

    Input data goes to the cluster's cache, under a name that follows from its content, so that it goes there once.  The
    file of a user's own model goes with the application: name in the folder :data:`SERVICE_FOLDER` -> file.  Where the
    tables do not say when jobs write checkpoints, it is every 30 seconds.

    Parameters
    ----------
    tables : mapping
        With absolute paths.
    cache : RemotePath

    Raises
    ------
    ConfigError
        A file cannot be read.
    StorageError
        The cluster does not take one.
    """
    models: dict[str, Path] = {}

    def moved(key: str, value: Any) -> Any:
        name = key.replace("-", "_")
        if name == "data" and isinstance(value, list):
            return [moved(name, part) for part in value]
        if not isinstance(value, str):
            return value
        if name == "data":
            return ",".join(_staged_file(part.strip(), cache) for part in _parts(value))
        if name in _FILES:
            return _staged_file(value, cache)
        if name == "model" and ".py:" in value:
            path, _, class_name = value.rpartition(":")
            brought = f"{_MODELS}/{len(models)}/{Path(path).name}"
            brought = next((known for known, file in models.items() if file == Path(path)), brought)
            models[brought] = Path(path)
            return f"{SERVICE_FOLDER}/{brought}:{class_name}"
        return value

    found = _with_places(tables, moved)
    if "checkpoint_every" not in {*found["job"], *found["space"]}:
        found["job"] = {**found["job"], "checkpoint_every": CHECKPOINT_EVERY}
    return found, models


def _parts(text: str) -> list[str]:
    # A name may have a comma in it.
    return [text] if "," not in text or Path(text).exists() else text.split(",")


def _with_places(tables: Mapping[str, Any], moved: Callable[[str, Any], Any]) -> dict[str, Any]:
    def chosen(name: str, dimension: Mapping[str, Any]) -> dict[str, Any]:
        return {kind: [moved(name, value) for value in values] for kind, values in dimension.items()}

    job = {name: moved(name, value) for name, value in tables["job"].items()}
    space = {name: chosen(name, dimension) for name, dimension in tables["space"].items()}
    return {**tables, "job": job, "space": space}


def _staged_file(text: str, cache: RemotePath) -> str:
    """Return a file's place in the cluster, where it is put unless it is there; what is no file of ours stays."""
    path = Path(text).expanduser()
    if not text or is_remote(text) or not path.is_file():
        return text
    # Labels may be found by their name, beside the images.
    beside = idx_labels_beside(path)
    files = [path, *([beside] if isinstance(beside, Path) else [])]
    try:
        digest = hashlib.sha256(b"".join(_digest(file) for file in files)).hexdigest()
        folder = cache / digest
        sizes = folder.sizes()
        storage = folder.storage()
        for file in files:
            if sizes.get(file.name) != file.stat().st_size:
                with storage.write(file.name) as target:
                    for piece in _pieces(file):
                        target.write(piece)
    except StorageError:
        raise
    except OSError as error:
        raise ConfigError(f"{error.filename}: cannot be read: {error.strerror}") from None
    return str(folder / path.name)


def _digest(path: Path) -> bytes:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").digest()


def _pieces(path: Path) -> Iterator[bytes]:
    with path.open("rb") as file:
        while piece := file.read(_PIECE_BYTES):
            yield piece
