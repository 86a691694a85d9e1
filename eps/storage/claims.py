"""Folders of checkpoints outside of jobs' directories: each says in ``owner.txt`` which job has it."""

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

#: In a folder outside of the job's directory: whose it is.
OWNER = "owner.txt"
#: A NameNode that does not answer is waited for this long before what is to go stays for now.
REMOVE_S = 3.0


def owner_of(job: JobDir) -> str:
    """Return how a job is named in the folder of its checkpoints: no two hosts or homes share a name."""
    return f"{socket.gethostname()}:{job.path}"


def signed_by(storage: Storage) -> str:
    """Return whose a folder is, as of :func:`owner_of`; empty where it does not say.

    Raises
    ------
    StorageError
        It cannot be looked at.
    """
    if OWNER not in storage.names(""):
        return ""
    with storage.read(OWNER) as file:
        return file.read().decode("utf-8", errors="replace").strip()


def open_kept(folder: str, conf_dir: str) -> Storage:
    """Return the store of a folder that EPS has on a cluster, which is waited for shortly only.

    Parameters
    ----------
    folder : str
    conf_dir : str
        Folder of the cluster's configuration.

    Raises
    ------
    ConfigError
        The configuration of its cluster cannot be read any more.
    """
    return open_storage(folder, patience_s=REMOVE_S, conf=read_configuration(Path(conf_dir)))


def check_claim(folder: Location, *owners: str) -> None:
    """Refuse a folder in which another job has checkpoints, or may have some soon.

    Raises
    ------
    ConfigError
        It would be in a file.
    JobExistsError
        It is not empty, and not of one of the ``owners``.
    StorageError
        It cannot be looked at.
    """
    if folder.parent.is_file():
        raise ConfigError(f"checkpoint_dir is {folder.parent}, which is a file, but must be a folder")
    storage = open_storage(folder)
    if not storage.names(""):
        return
    found = ""
    with suppress(StorageError):
        found = signed_by(storage)
    if not found or found not in owners:
        raise JobExistsError(
            f"checkpoint_dir: {folder} is {f'of the job {found}' if found else 'not empty'}: choose another name or "
            f"another checkpoint_dir, or remove that folder{', if that job is over' if found else ''}"
        )


def claim(folder: Location, owner: str, *formers: str) -> None:
    """Take a folder for the checkpoints of a new job; what an earlier job of the same owner left is removed.

    Parameters
    ----------
    folder : Location
    owner : str
    *formers : str
        What the same owner was called before.

    Raises
    ------
    ConfigError, JobExistsError, StorageError
        As :func:`check_claim`; or it cannot be written.
    """
    check_claim(folder, owner, *formers)
    storage = open_storage(folder)
    if storage.names(""):
        storage.remove("")
    try:
        _sign(storage, owner)
    except BaseException:
        # Also where somebody interrupts: nobody would know whose the empty folder is.
        with suppress(StorageError):
            storage.remove("")
        raise


def check_signed(storage: Storage, owner: str) -> bool:
    """Return whether a folder says that it is ``owner``'s; empty: the job's directory has it, and nobody signs.

    Raises
    ------
    StorageError
        Another job has it by now; or it cannot be looked at.
    """
    if not owner:
        return True
    found = signed_by(storage)
    if found not in ("", owner):
        raise StorageError(
            f"{storage.describe('')} is of the job {found} by now: it was removed while this job had it; end one of "
            "the two, and give it another checkpoint_dir"
        )
    return bool(found)


def claim_again(storage: Storage, owner: str) -> None:
    """Say once more whose a folder is, where somebody has removed it under its job; else nothing changes.

    Raises
    ------
    StorageError
        As :func:`check_signed`; or it cannot be written.
    """
    if not check_signed(storage, owner):
        _sign(storage, owner)


def _sign(storage: Storage, owner: str) -> None:
    with storage.write(OWNER) as file:
        file.write(owner.encode("utf-8") + b"\n")


def release(storage: Storage, owner: str) -> bool:
    """Remove a folder with all checkpoints in it; return False where it is not ``owner``'s, and stays.

    Raises
    ------
    StorageError
        It cannot be looked at, or cannot be removed.
    """
    if not storage.names(""):
        return True
    if signed_by(storage) != owner or not owner:
        return False
    storage.remove("")
    return True


@dataclass(frozen=True)
class Claim:
    """A folder on a cluster that EPS chose for a job's checkpoints: it goes with the job.

    One that the user named (``--checkpoint-dir``) is his: of that there is no such note, and it stays.
    """

    folder: str
    #: As of :func:`owner_of`, when it was taken.
    owner: str
    #: Folder of the cluster's configuration.
    conf_dir: str

    def write(self, job: JobDir) -> None:
        """Note it in the job's record, before the folder is taken."""
        job.note(yarn={"claim": asdict(self)})

    @classmethod
    def read(cls, job: JobDir) -> Claim | None:
        """Return what is noted; None of a job that has no such folder, or has it no longer.

        Raises
        ------
        StorageError
            The record cannot be read.
        """
        found = job.record().yarn.claim
        return None if found is None else cls(*(str(found[field.name]) for field in fields(cls)))

    def remove(self) -> None:
        """Remove the folder, unless it has become somebody else's.  Harmless when repeated.

        Raises
        ------
        ConfigError
            The configuration of its cluster cannot be read any more.
        StorageError
            It cannot be removed.
        """
        if not release(open_kept(self.folder, self.conf_dir), self.owner):
            logger.warning("%s stays: its %s does not name %s", self.folder, OWNER, self.owner)


def remove_claimed(job: JobDir) -> None:
    """Remove what a job that nobody is to go on with has of checkpoints on a cluster, where EPS chose their folder.

    Harmless when repeated; raises as :meth:`Claim.remove`.

    Parameters
    ----------
    job : JobDir
        Whose lock the caller holds.
    """
    claimed = Claim.read(job)
    if claimed is not None:
        claimed.remove()
        job.note(yarn={"claim": None})
