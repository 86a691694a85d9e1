"""What is uploaded for an application: the orders of its master, and the local files that its jobs read."""

from __future__ import annotations

import dataclasses
import hashlib
import io
import json
import zipfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from eps.data.cut import files_beside
from eps.errors import ConfigError, StorageError
from eps.storage.locations import RemotePath, is_remote
from hscheduler.service.main import ServiceSettings

#: Folder in the master's container with its private files: orders, certificates of the service, models.
SERVICE_FOLDER = "eps-service"
ORDERS_FILE = "orders.json"
#: File in the application's shared folder with the address of the service.
SERVICE_FILE = "service.json"
#: Types of applications.  They differ from that of a job, so that a scheduler does not count them as jobs.
SWEEP_TYPE, SERVICE_TYPE = "EPS-SWEEP", "EPS-SCHEDULER"


@dataclass(frozen=True)
class ServiceOrders:
    """The service that an application master runs."""

    settings: ServiceSettings
    #: Tables of :meth:`hscheduler.spec.Spec.tables`; the application ends with this sweep.  None: clients submit to it.
    sweep: Mapping[str, Any] | None = None
    #: Most seconds that a job waits for a container of YARN; 0.0 sets no limit.
    container_timeout_s: float = 0.0

    def to_bytes(self) -> bytes:
        """Return the contents of the file that :meth:`read` reads."""
        return json.dumps(dataclasses.asdict(self)).encode("utf-8")

    @classmethod
    def read(cls, folder: Path) -> ServiceOrders:
        """Return the orders in a container's private folder.

        Raises
        ------
        ConfigError
            The file is missing or invalid.
        """
        try:
            return cls._of((folder / ORDERS_FILE).read_bytes())
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise ConfigError(f"{folder / ORDERS_FILE} is not valid: {error!r}") from None

    @classmethod
    def of_archive(cls, content: bytes, where: str) -> ServiceOrders:
        """Return the orders in an archive with the private files of a master, which is at ``where``.

        Raises
        ------
        ConfigError
            It has none.
        """
        try:
            with zipfile.ZipFile(io.BytesIO(content)) as archive:
                return cls._of(archive.read(ORDERS_FILE))
        except (zipfile.BadZipFile, ValueError, KeyError, TypeError) as error:
            raise ConfigError(f"{where} has no valid orders: {error!r}") from None

    @classmethod
    def _of(cls, content: bytes) -> ServiceOrders:
        values = json.loads(content)
        return cls(**{**values, "settings": ServiceSettings(**values["settings"])})


#: Settings that may be a path.  Their other values (a fraction, a name of scikit-learn) are no existing files.
_FILES = ("labels", "test", "test_labels", "init")
_PIECE_BYTES = 1 << 20
#: Subfolder of models in :data:`SERVICE_FOLDER`.
_MODELS = "models"


def stage(tables: Mapping[str, Any], cache: RemotePath) -> tuple[dict[str, Any], dict[str, Path]]:
    """Upload the data of a sweep; return its tables with remote paths, and the files of users' models to ship.

    Data goes to the cluster's cache under the hash of its content, so each version is uploaded once.  Models are
    shipped with the application; the second result maps their names in :data:`SERVICE_FOLDER` to local files.

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
        A file cannot be uploaded.
    """
    models: dict[str, Path] = {}

    def remote(key: str, value: Any) -> Any:
        name = key.replace("-", "_")
        if name == "data" and isinstance(value, list):
            return [remote(name, part) for part in value]
        if not isinstance(value, str):
            return value
        if name == "data":
            return ",".join(_staged_file(part.strip(), cache) for part in _parts(value))
        if name in _FILES:
            return _staged_file(value, cache)
        if name == "model" and ".py:" in value:
            path, _, class_name = value.rpartition(":")
            shipped = f"{_MODELS}/{len(models)}/{Path(path).name}"
            shipped = next((known for known, file in models.items() if file == Path(path)), shipped)
            models[shipped] = Path(path)
            return f"{SERVICE_FOLDER}/{shipped}:{class_name}"
        return value

    return _with_values(tables, remote), models


def _parts(text: str) -> list[str]:
    # The name of an existing file may contain a comma.
    return [text] if "," not in text or Path(text).exists() else text.split(",")


def _with_values(tables: Mapping[str, Any], replace: Callable[[str, Any], Any]) -> dict[str, Any]:
    def replaced(name: str, entry: Any) -> Any:
        if isinstance(entry, Mapping) and isinstance(entry.get("choice"), list):
            return {"choice": [option(name, each) for each in entry["choice"]]}
        return entry if isinstance(entry, Mapping) else replace(name, entry)

    def option(name: str, value: Any) -> Any:
        if not isinstance(value, Mapping):
            return replace(name, value)
        return {key: replaced(key, each) for key, each in value.items()}

    job = {name: replace(name, value) for name, value in tables["job"].items()}
    space = {name: replaced(name, dimension) for name, dimension in tables["space"].items()}
    return {**tables, "job": job, "space": space}


def _staged_file(text: str, cache: RemotePath) -> str:
    """Upload a local file unless the cluster has it, and return its remote path; return any other text unchanged."""
    path = Path(text).expanduser()
    if not text or is_remote(text) or not path.is_file():
        return text
    files = [path, *(each for each in files_beside(path) if isinstance(each, Path))]
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
