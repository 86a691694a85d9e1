"""Ownership of checkpoint folders outside of jobs' directories: ``owner.txt`` in each names its job."""

from __future__ import annotations

import logging
import socket
from contextlib import suppress
from dataclasses import asdict, dataclass, fields
from pathlib import Path

from eps.errors import ConfigError, JobExistsError, StorageError
from eps.hadoop.conf import read_configuration
from eps.storage.api import Storage
from eps.storage.jobdir import JobDir
from eps.storage.locations import Location, open_storage

logger = logging.getLogger(__name__)

#: File in such a folder that names its owner.
OWNER = "owner.txt"
#: Retry deadline for a removal; after it the folder stays for now.
REMOVE_S = 3.0


def owner_of(job: JobDir) -> str:
    """Return a job's name as a folder owner: unique across hosts and homes."""
    return f"{socket.gethostname()}:{job.path}"


def read_owner(storage: Storage) -> str:
    """Return the owner that a folder names, see :func:`owner_of`; empty if it names none.

    Raises
    ------
    StorageError
        The folder cannot be read.
    """
    if OWNER not in storage.names(""):
        return ""
    with storage.read(OWNER) as file:
        return file.read().decode("utf-8", errors="replace").strip()


def open_cluster_folder(folder: str, conf_dir: str) -> Storage:
    """Return the store of a folder that EPS created on a cluster, with a short retry deadline.

    Parameters
    ----------
    folder : str
    conf_dir : str
        Folder of the cluster's configuration.

    Raises
    ------
    ConfigError
        The cluster's configuration can no longer be read.
    """
    return open_storage(folder, patience_s=REMOVE_S, conf=read_configuration(Path(conf_dir)))


def check_claim(folder: Location, *owners: str) -> None:
    """Refuse a folder that another job uses for its checkpoints, or has claimed.

    Raises
    ------
    ConfigError
        The parent of the folder is a file.
    JobExistsError
        The folder is not empty, and its owner is not one of ``owners``.
    StorageError
        The folder cannot be read.
    """
    if folder.parent.is_file():
        raise ConfigError(f"checkpoint_dir is {folder.parent}, which is a file, but must be a folder")
    storage = open_storage(folder)
    if not storage.names(""):
        return
    found = ""
    with suppress(StorageError):
        found = read_owner(storage)
    if not found or found not in owners:
        raise JobExistsError(
            f"checkpoint_dir: {folder} {f'belongs to job {found}' if found else 'is not empty'}: choose another name "
            f"or another checkpoint_dir, or remove that folder{', if that job has ended' if found else ''}"
        )


def claim(folder: Location, owner: str, *formers: str) -> None:
    """Claim a folder for the checkpoints of a new job; remove the files of an earlier job of the same owner.

    Parameters
    ----------
    folder : Location
    owner : str
    *formers : str
        Earlier names of the same owner.

    Raises
    ------
    ConfigError, JobExistsError, StorageError
        :func:`check_claim` refuses the folder, or it cannot be written.
    """
    check_claim(folder, owner, *formers)
    storage = open_storage(folder)
    if storage.names(""):
        storage.remove("")
    try:
        _write_owner(storage, owner)
    except BaseException:
        # Also on an interrupt: an empty folder without an owner would block its next user.
        with suppress(StorageError):
            storage.remove("")
        raise


def check_owner(storage: Storage, owner: str) -> bool:
    """Return whether a folder names ``owner``; True for an empty ``owner``, whose folder is in the job's directory.

    Raises
    ------
    StorageError
        The folder belongs to another job, or cannot be read.
    """
    if not owner:
        return True
    found = read_owner(storage)
    if found not in ("", owner):
        raise StorageError(
            f"{storage.describe('')} belongs to job {found} now: the folder was removed while this job used it; end "
            "one of the two jobs, and give it another checkpoint_dir"
        )
    return bool(found)


def restore_owner(storage: Storage, owner: str) -> None:
    """Write the owner of a folder again if the folder was removed while its job runs.

    Raises
    ------
    StorageError
        :func:`check_owner` refuses the folder, or it cannot be written.
    """
    if not check_owner(storage, owner):
        _write_owner(storage, owner)


def _write_owner(storage: Storage, owner: str) -> None:
    with storage.write(OWNER) as file:
        file.write(owner.encode("utf-8") + b"\n")


def release(storage: Storage, owner: str) -> bool:
    """Remove a folder with all its checkpoints; keep it and return False if ``owner`` does not own it.

    Raises
    ------
    StorageError
        The folder cannot be read or removed.
    """
    if not storage.names(""):
        return True
    if read_owner(storage) != owner or not owner:
        return False
    storage.remove("")
    return True


@dataclass(frozen=True)
class Claim:
    """A checkpoint folder on a cluster that EPS chose for a job; it is removed with the job.

    A folder that the user named (``--checkpoint-dir``) has no such note and stays.
    """

    folder: str
    #: The owner (see :func:`owner_of`) when the folder was claimed.
    owner: str
    #: Folder of the cluster's configuration.
    conf_dir: str

    def write(self, job: JobDir) -> None:
        """Add the claim to the job's record, before the folder is claimed."""
        job.note(yarn={"claim": asdict(self)})

    @classmethod
    def read(cls, job: JobDir) -> Claim | None:
        """Return the claim in a job's record; None if the job has no such folder, or no longer.

        Raises
        ------
        StorageError
            The record cannot be read.
        """
        found = job.record().yarn.claim
        return None if found is None else cls(*(str(found[field.name]) for field in fields(cls)))

    def remove(self) -> None:
        """Remove the folder, unless another owner has claimed it.  Idempotent.

        Raises
        ------
        ConfigError
            The cluster's configuration can no longer be read.
        StorageError
            The folder cannot be removed.
        """
        if not release(open_cluster_folder(self.folder, self.conf_dir), self.owner):
            logger.warning("%s is not removed: its %s does not name %s", self.folder, OWNER, self.owner)


def remove_claimed(job: JobDir) -> None:
    """Remove the checkpoint folder that EPS chose on a cluster for a job that will not be resumed.

    Idempotent; raises the errors of :meth:`Claim.remove`.

    Parameters
    ----------
    job : JobDir
        The caller holds its lock.
    """
    claimed = Claim.read(job)
    if claimed is not None:
        claimed.remove()
        job.note(yarn={"claim": None})
